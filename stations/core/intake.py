"""From tensors to jobs: every check that a tensor message must pass before anything is computed with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aeonflow.errors import BadTensorError
from aeonflow.tensors import PREFIX_BYTES, DType, Port, Tensor, Want

from ..kernels.base import vocab_range
from ..models.card import ModelCard
from .limits import StationLimits
from .stages import CompiledRoute, Stage

Array = npt.NDArray[Any]
_F32 = np.dtype("<f4")
_U32 = np.dtype("<u4")
_IDS, _DTYPE_F32 = int(Port.IDS), int(DType.F32)  # plain numbers: comparing enums costs more than the check


class Intake:
    """Checks against one model's geometry and one station's limits."""

    def __init__(self, card: ModelCard, limits: StationLimits) -> None:
        self._card = card
        self._limits = limits
        hidden = card.hidden_size
        self._widths: dict[int, int] = {
            _IDS: 1, int(Port.X): hidden, int(Port.N): hidden, int(Port.H): hidden, int(Port.U): card.ffn_size,
            int(Port.F): hidden,
        }  # fmt: skip

    def check_rows(self, head: Tensor, max_positions: int) -> None:
        """The pass must fit a message, the context and what the session reserved. BadTensorError."""
        rows, end = head.rows, head.first + head.rows
        if rows > self._limits.max_rows:
            raise BadTensorError(f"pass of {rows} rows: at most {self._limits.max_rows} go in one message")
        if end > self._card.context_length >= max_positions:
            raise BadTensorError(
                f"positions {head.first} to {end - 1} are beyond the context of {self._card.context_length} tokens"
            )
        if end > max_positions:
            raise BadTensorError(f"positions {head.first} to {end - 1}: the session was opened for {max_positions}")

    def array(self, tensor: Tensor, stage: Stage) -> Array:
        """The rows of an input, a view of the message [rows, width]. BadTensorError for what the stage cannot take."""
        port = tensor.port
        if port not in stage.inputs:
            taken = ", ".join(Port(p).name for p in stage.inputs)
            raise BadTensorError(f"port {Port(port).name} at {stage.role}: it takes {taken}")
        width = self._widths[port]
        if tensor.dim0 != tensor.rows or tensor.dim1 != width:
            raise BadTensorError(
                f"{Port(port).name} of {tensor.dim0}x{tensor.dim1} for {stage.role}: {tensor.rows}x{width} is expected"
            )
        if port == _IDS:
            return self._ids(tensor)
        if tensor.dtype != _DTYPE_F32:
            raise BadTensorError(f"{Port(port).name} as {DType(tensor.dtype).name}: this station takes F32")
        return np.ndarray((tensor.dim0, width), _F32, tensor.data)

    def hidden_rows(self, tensor: Tensor) -> Array:
        """The rows of a residual seed, a view of the message f32 [rows, H]. BadTensorError for another shape."""
        width = self._card.hidden_size
        if (tensor.dtype, tensor.dim0, tensor.dim1) != (_DTYPE_F32, tensor.rows, width):
            raise BadTensorError(f"seed of {tensor.dim0}x{tensor.dim1}: f32 {tensor.rows}x{width} is expected")
        return np.ndarray((tensor.dim0, width), _F32, tensor.data)

    def check_answer(self, head: Tensor, stage: Stage) -> None:
        """All logits of a pass must fit one message. BadTensorError."""
        if head.want == Want.ALL:
            lo, hi = vocab_range(self._card.vocab_size, stage.part, stage.parts)
            size = PREFIX_BYTES + head.rows * (hi - lo) * 4
            if size > self._limits.max_message_bytes:
                raise BadTensorError(
                    f"logits of {head.rows} rows are {size:,} bytes: {self._limits.max_message_bytes:,} go in a message"
                )

    def _ids(self, tensor: Tensor) -> Array:
        if tensor.dtype != DType.U32:
            raise BadTensorError(f"IDS as {DType(tensor.dtype).name}: token ids are U32")
        ids = np.ndarray((tensor.dim0, 1), _U32, tensor.data)
        largest = int(ids.max())
        if largest >= self._card.vocab_size:
            raise BadTensorError(f"token id {largest}: the vocabulary has {self._card.vocab_size}")
        return ids


def find_stages(route: CompiledRoute, stream: int, role: str, tensors: Sequence[Tensor]) -> tuple[Stage, ...]:
    """The stages of `route` that take these inputs; a call to one of several shards names its part. BadTensorError."""
    head = tensors[0]
    stages = route.takers(stream, head.layer, head.kind)
    if route.variants and len(tensors) == 1:
        stages = route.variants.get((stream, head.layer, head.port), stages)
    if stages is None:
        layers = sorted(layer for at, layer in route.stages if at == stream)
        carried = f"{role} of layers {', '.join(map(str, layers))}" if layers else f"no {role}"
        raise BadTensorError(f"{role} of layer {head.layer}: this station carries {carried} on route {route.route}")
    if route.route == 0 and len(stages) > 1:
        stages = tuple(s for s in stages if s.part == head.part)
        if not stages:
            raise BadTensorError(f"{role} part {head.part}: this station does not carry it")
    return stages
