"""A pass and the jump over the chain that its residual seeds make (`docs/protocol.md`, *Residual seeds*).

`PassContext` says which rows of which session a tensor belongs to. `alpha_jump` makes the message that carries a
residual seed along a Fano line; stations call it, and the host where it relays. It knows no socket: what is to be sent,
and where to, is its result. Which lines are open on a route is the host's policy, which stands in the route.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from blake3 import blake3

from . import bands, fano
from .errors import BadTensorError, FrameTooLargeError
from .frames import MAX_PAYLOAD_BYTES, Buffer
from .tensors import MAX_TENSORS, PREFIX, PREFIX_BYTES, DType, Kind, Port, Tensor, pack_tensors

FINGERPRINT_WORDS = 8  # of u32: a blake3 digest
FINGERPRINT_BYTES = 4 * FINGERPRINT_WORDS
SEED_OVERHEAD_BYTES = 2 * PREFIX_BYTES + FINGERPRINT_BYTES  # of a seed that carries its fingerprint

INITIAL, RESIDUAL, ATTENTION, EARLY, FFN = 0, 1, 3, 4, 5  # the lines that carry seeds: 123, 145, 246, 257, 347

# What a line carries: port, and how many layers its receiver lies above its sender.
LINE_PORTS: dict[int, Port] = {
    INITIAL: Port.SEED,
    RESIDUAL: Port.SEED,
    ATTENTION: Port.A,
    EARLY: Port.H,
    FFN: Port.X,
}
_LINE_STEPS: dict[int, int] = {INITIAL: 0, RESIDUAL: 1, ATTENTION: 0, EARLY: 0, FFN: 1}

assert set(LINE_PORTS) == {line.index for line in fano.LINES if line.is_seed}
assert MAX_TENSORS >= 2


class Jump(NamedTuple):
    """A message to send to `dst`: one frame on the seed band. `layer` is the layer it is for."""

    dst: str
    stream: int
    sequence: int
    layer: int
    pieces: Sequence[Buffer]


class PassContext(msgspec.Struct, frozen=True):
    """The rows of one pass: the fields that all of its tensors share. `hop` is that of the message to be sent."""

    session: int
    epoch: int
    base: int
    settled: int
    kind: int
    first: int
    rows: int
    options: int
    route: int
    hop: int

    @classmethod
    def of(cls, head: Tensor, *, kind: int | None = None, hop: int | None = None) -> PassContext:
        """The pass that a tensor belongs to; `kind` and `hop` as the message to be sent has them."""
        return cls(
            head.session, head.epoch, head.base, head.settled, head.kind if kind is None else kind, head.first,
            head.rows, head.options, head.route, head.hop if hop is None else hop,
        )  # fmt: skip

    def alpha_jump(
        self, line: int, sign: int, payload: memoryview[Any], src_layer: int, dst: str, token_seq: int
    ) -> Jump:
        """The seed of `line` with orientation `sign` from `src_layer`: `payload` f32 [rows, width], C-contiguous.

        `dst` is the receiver's address, "" the sender itself. Canonical seeds carry their fingerprint, since rows are
        computed from them. BadTensorError when the line carries no seeds, `token_seq` is not the pass's first position
        or the shape is not the pass's; FrameTooLargeError when the seed is more than one frame.
        """
        if line not in LINE_PORTS:
            raise BadTensorError(f"line {line} carries no seeds: lines {', '.join(map(str, LINE_PORTS))} do")
        if token_seq != self.first:
            raise BadTensorError(f"seed of position {token_seq} from the pass at {self.first}: its first row is meant")
        shape = payload.shape or ()
        if len(shape) != 2 or payload.itemsize != 4 or shape[0] != self.rows:
            raise BadTensorError(f"seed of shape {shape}: {self.rows} rows of f32 are expected")
        width = shape[1]
        check_seed_bytes(self.rows, width)
        layer = destination_layer(line, src_layer)
        seed = Tensor(
            self.session, self.epoch, self.base, self.settled, self.first, self.rows, layer, self.kind,
            LINE_PORTS[line], self.options, DType.F32, self.route, self.hop, self.rows, width,
            payload.cast("B"),
        )  # fmt: skip
        tensors = [seed]
        if self.kind == Kind.CANONICAL:
            tensors.append(_fingerprint_tensor(seed))
        return Jump(dst, bands.seed_stream(line, sign), token_seq, layer, pack_tensors(tensors))


def destination_layer(line: int, src_layer: int) -> int:
    """The layer that a seed of `line` sent from `src_layer` is for. BadTensorError outside the prefix's range.

    Lines 1 and 5 lead to the layer above, line 0 to layer 0; of line 4 it is the layer whose output is tapped.
    """
    layer = src_layer + _LINE_STEPS[line]
    if not 0 <= layer <= 0xFFFF or (line == INITIAL and layer):
        raise BadTensorError(f"seed of line {line} from layer {src_layer}: there is no layer {layer} for it")
    return layer


def check_seed_bytes(rows: int, width: int) -> None:
    """A seed is one frame. FrameTooLargeError with both sizes when `rows` of `width` floats are more."""
    size = rows * width * 4 + SEED_OVERHEAD_BYTES
    if size > MAX_PAYLOAD_BYTES:
        raise FrameTooLargeError(
            f"a seed of {rows} rows x {width} is {size:,} bytes, one frame holds {MAX_PAYLOAD_BYTES:,}: at most "
            f"{max_seed_rows(width)} rows"
        )


def max_seed_rows(width: int) -> int:
    """Rows of a pass whose seeds of `width` floats fit a frame."""
    return (MAX_PAYLOAD_BYTES - SEED_OVERHEAD_BYTES) // (4 * width)


def fingerprint(seed: Tensor) -> bytes:
    """blake3 over what a seed says and its f32 bytes, 32 bytes; hop and options, which are the way's, aside."""
    prefix = PREFIX.pack(
        seed.session, seed.epoch, seed.base, 0, seed.first, seed.rows, seed.layer, seed.kind, seed.port, 0, seed.dtype,
        seed.route, 0, 2, seed.dim0, seed.dim1,
    )  # fmt: skip
    return blake3(prefix).update(seed.data).digest()


def is_genuine(seed: Tensor, claimed: Tensor) -> bool:
    """Is `claimed` the fingerprint of `seed`?"""
    return (
        claimed.port == Port.TOKEN
        and (claimed.dtype, claimed.dim0, claimed.dim1) == (DType.U32, 1, FINGERPRINT_WORDS)
        and bytes(claimed.data) == fingerprint(seed)
    )


def _fingerprint_tensor(seed: Tensor) -> Tensor:
    return msgspec.structs.replace(
        seed, port=Port.TOKEN, dtype=DType.U32, dim0=1, dim1=FINGERPRINT_WORDS, data=fingerprint(seed)
    )
