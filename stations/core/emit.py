"""Outputs as messages: the prefix of every tensor that leaves, in one pack call each; data as views of the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aeonflow import bands
from aeonflow.tensors import MAX_HOP, PREFIX, DType, Port, Tensor, Want

from .counters import Counters
from .outbox import Outbox
from .outgoing import Caller
from .queue import Job
from .session import Session
from .stages import Edge, Stage

Array = npt.NDArray[Any]

_PASS_OPTIONS = 0b111  # grow and want travel on; the part is the sender's own


class Emitter:
    """`crossing` is what a message to another process adds to its hop: 1, or 0 for a station inside the host."""

    def __init__(self, outbox: Outbox, counters: Counters, crossing: int) -> None:
        self._outbox = outbox
        self._events = counters.events
        self._crossing = crossing

    def forward(self, job: Job, edge: Edge, outputs: Sequence[Array]) -> None:
        """One output, or two in one message, to the edge's other end."""
        self._events["messages_forwarded"] += 1
        pieces = self._forwarded(job, edge, edge.port, outputs[edge.output])
        if edge.also >= 0:
            pieces += self._forwarded(job, edge, job.stage.outputs[edge.also], outputs[edge.also])
        self._outbox.send_on(edge.url, job.session, edge.stream, pieces, edge.flags)

    def _forwarded(self, job: Job, edge: Edge, port: int, array: Array) -> tuple[bytes | memoryview, ...]:
        head, stage = job.head, job.stage
        hop = head.hop + self._crossing
        prefix = PREFIX.pack(
            head.session, head.epoch, head.base, head.settled, head.first, head.rows, edge.layer, head.kind, port,
            head.options & _PASS_OPTIONS | stage.part << 3, 0, head.route, hop if hop <= MAX_HOP else MAX_HOP, 2,
            *array.shape,
        )  # fmt: skip
        return prefix, array.data.cast("B")

    def answer(self, job: Job, caller: Caller, outputs: tuple[Array, ...]) -> None:
        """Every output port of the role, in one reply to a call."""
        if job.stage.role == "head":
            self.logits(job, outputs[0])
            return
        self._events["answers"] += 1
        head, stage = job.head, job.stage
        pieces: list[bytes | memoryview] = []
        for port, array in zip(stage.outputs, outputs, strict=True):
            pieces += self._tensor(head, stage, head.first, port, DType.F32, array)
        self._outbox.answer(caller, pieces)

    def logits(self, job: Job, array: Array) -> None:
        """Logits of the last row or of all: to the caller, or on a chain to the host of the session."""
        self._events["answers"] += 1
        head = job.head
        first = head.first if head.want == Want.ALL else head.first + head.rows - 1
        self.to_host(job.session, job.stage, job.caller, head, array, first, Port.LOGITS)

    def candidates(self, job: Job, ids: Array, logits: Array) -> None:
        """The end of a draft: the ids u32 and logits f32 [1, K] of its best tokens, to the host of the session."""
        head, stage = job.head, job.stage
        pieces = self._tensor(head, stage, head.first, Port.TOKEN, DType.U32, ids)
        pieces += self._tensor(head, stage, head.first, Port.LOGITS, DType.F32, logits)
        self._outbox.unasked(job.session.owner, bands.HEAD, pieces)

    def to_host(
        self, session: Session, stage: Stage, caller: Caller | None, head: Tensor, array: Array, first: int, port: Port
    ) -> None:
        """The end of a pass: logits or an acknowledgement."""
        dtype = DType.U32 if port is Port.TOKEN else DType.F32
        pieces = self._tensor(head, stage, first, port, dtype, array)
        if caller is not None:
            self._outbox.answer(caller, pieces)
        else:
            self._outbox.unasked(session.owner, bands.HEAD, pieces)

    def _tensor(
        self, head: Tensor, stage: Stage, first: int, port: int, dtype: DType, array: Array
    ) -> list[bytes | memoryview]:
        prefix = PREFIX.pack(
            head.session, head.epoch, head.base, head.settled, first, head.rows, stage.layer, head.kind, port,
            head.options & _PASS_OPTIONS | stage.part << 3, dtype, head.route,
            min(head.hop + self._crossing, MAX_HOP), 2, array.shape[0], array.shape[1],
        )  # fmt: skip
        return [prefix, array.data.cast("B")]


def acknowledgement(position: int) -> npt.NDArray[np.uint32]:
    """Port TOKEN, u32 [1, 1]: the position after the last row of a pass that wanted no logits."""
    return np.array([[position]], np.uint32)
