"""Tensor payloads: a fixed 48-byte little-endian prefix and raw bytes, 1 to 4 of them back to back.

Knows bytes and shapes, no numpy and no models. `pack_tensors` and `unpack_tensors` are the only way in and out;
every size is checked against the payload's length before anything is read. Byte table: `docs/protocol.md`, *Tensors*.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from .errors import BadTensorError

PREFIX = struct.Struct("<QIIIIHHBBBBIHHII")
PREFIX_BYTES = PREFIX.size
MAX_HOP = 0xFFFF  # of the prefix's u16; a hop beyond stays there
MAX_TENSORS = 4
MAX_PARTS = 32

assert PREFIX_BYTES == 48


class Kind(IntEnum):
    """What the rows are for. Canonical rows enter caches and decide tokens; draft and shadow rows never do."""

    CANONICAL = 0
    DRAFT = 1
    SHADOW = 2


class Port(IntEnum):
    """Which input or output a tensor is. Names as in the role table of `docs/protocol.md`."""

    IDS = 0
    X = 1
    N = 2
    H = 3
    U = 4
    A = 5
    F = 6
    SEED = 7
    LOGITS = 8
    TOKEN = 9


class DType(IntEnum):
    F32 = 0
    U32 = 1
    F16 = 2
    BF16 = 3
    Q8 = 4  # per 32 values: f16 scale, then 32 int8


class Want(IntEnum):
    """What the head answers for a pass (bits 1–2 of the options byte, copied by every station)."""

    LAST = 0  # logits of the last row
    ALL = 1  # logits of every row
    NONE = 2  # an acknowledgement: port TOKEN, u32 [1, 1], the position after the last row


GROW = 1  # bit 0 of the options byte: grow a draft from this pass

# Plain numbers for the hot path: comparing with a member of an enum, or making one, costs more than the check itself.
_FIXED_BYTES: dict[int, int] = {int(DType.F32): 4, int(DType.U32): 4, int(DType.F16): 2, int(DType.BF16): 2}
_LAST_KIND, _LAST_PORT, _LAST_WANT = int(Kind.SHADOW), int(Port.TOKEN), int(Want.NONE)


class Tensor(msgspec.Struct, frozen=True):
    """One tensor of a message: prefix fields and `data`, a view of dim0 × dim1 values, row-major, little-endian.

    `dim0` is 1 or more rows, `dim1` the width. `first` is the position of row 0, `rows` the rows of the pass this
    tensor belongs to (equal to dim0, but for logits of the last row only and acknowledgements).
    """

    session: int
    epoch: int
    base: int
    settled: int
    first: int
    rows: int
    layer: int
    kind: int
    port: int
    options: int
    dtype: int
    route: int
    hop: int
    dim0: int
    dim1: int
    data: bytes | bytearray | memoryview

    @property
    def want(self) -> Want:
        return Want(self.options >> 1 & 3)

    @property
    def part(self) -> int:
        """Index of the shard this tensor comes from (embed and head shards, ffn slices)."""
        return self.options >> 3


def options_byte(*, grow: bool = False, want: Want = Want.LAST, part: int = 0) -> int:
    """The options byte: GROW in bit 0, `want` in bits 1–2, the shard's index in bits 3–7."""
    if not 0 <= part < MAX_PARTS:
        raise BadTensorError(f"part {part}: at most {MAX_PARTS} parts, 0 to {MAX_PARTS - 1}")
    return int(grow) | want << 1 | part << 3


def data_bytes(dtype: int, dim0: int, dim1: int) -> int:
    """Bytes of a dim0 × dim1 tensor; raises BadTensorError for an unknown dtype or a width q8 cannot hold."""
    value_bytes = _FIXED_BYTES.get(dtype)
    if value_bytes is not None:
        return dim0 * dim1 * value_bytes
    if dtype != DType.Q8:
        raise BadTensorError(f"dtype {dtype} is unknown; known are {[d.value for d in DType]}")
    if dim1 % 32:
        raise BadTensorError(f"q8 tensor of width {dim1}: the width must be a multiple of 32")
    return dim0 * (dim1 // 32) * 34


def pack_tensors(tensors: Sequence[Tensor]) -> list[bytes | bytearray | memoryview]:
    """The pieces of a payload, prefix and data in turn, for one scatter-gather write. Checks every size."""
    if not 1 <= len(tensors) <= MAX_TENSORS:
        raise BadTensorError(f"{len(tensors)} tensors in a message: 1 to {MAX_TENSORS} are allowed")
    pieces: list[bytes | bytearray | memoryview] = []
    for t in tensors:
        size = memoryview(t.data).nbytes
        expected = data_bytes(t.dtype, t.dim0, t.dim1)
        if size != expected:
            raise BadTensorError(f"tensor {t.dim0}x{t.dim1} dtype {t.dtype} needs {expected} bytes, has {size}")
        pieces.append(
            PREFIX.pack(
                t.session, t.epoch, t.base, t.settled, t.first, t.rows, t.layer, t.kind, t.port, t.options,
                t.dtype, t.route, t.hop, 2, t.dim0, t.dim1,
            )
        )  # fmt: skip
        pieces.append(t.data)
    return pieces


def unpack_tensors(payload: bytes | bytearray | memoryview) -> list[Tensor]:
    """Tensors of a payload, their data as views of it. Raises BadTensorError on any inconsistency.

    The group (session, epoch, base, settled, first, rows, layer, kind, route) must agree between the tensors.
    """
    view = memoryview(payload)
    total = len(view)
    tensors: list[Tensor] = []
    at = 0
    while at < total:
        if len(tensors) == MAX_TENSORS:
            raise BadTensorError(f"more than {MAX_TENSORS} tensors in a message")
        if total - at < PREFIX_BYTES:
            raise BadTensorError(f"tensor prefix cut short: {total - at} of {PREFIX_BYTES} bytes")
        (session, epoch, base, settled, first, rows, layer, kind, port, options, dtype, route, hop, ndim, dim0,
         dim1) = PREFIX.unpack_from(view, at)  # fmt: skip
        at += PREFIX_BYTES
        if ndim != 2:
            raise BadTensorError(f"tensor of {ndim} dimensions: only 2 are allowed")
        if not dim0 or not dim1 or not rows:
            raise BadTensorError(f"tensor {dim0}x{dim1} of {rows} rows: no dimension may be 0")
        if kind > _LAST_KIND:
            raise BadTensorError(f"kind {kind} is unknown; known are 0 to {_LAST_KIND}")
        if port > _LAST_PORT:
            raise BadTensorError(f"port {port} is unknown; known are 0 to {_LAST_PORT}")
        if options >> 1 & 3 > _LAST_WANT:
            raise BadTensorError(f"options {options:#04x}: want 3 is unknown")
        size = data_bytes(dtype, dim0, dim1)
        if size > total - at:
            raise BadTensorError(f"tensor {dim0}x{dim1} needs {size} bytes, {total - at} follow")
        data = view[at : at + size]
        at += size
        tensor = Tensor(session, epoch, base, settled, first, rows, layer, kind, port, options, dtype, route,
                        hop, dim0, dim1, data)  # fmt: skip
        if tensors and _group(tensor) != _group(tensors[0]):
            raise BadTensorError(f"tensors of one message disagree: {_group(tensors[0])} and {_group(tensor)}")
        tensors.append(tensor)
    if not tensors:
        raise BadTensorError("no tensor in the message: 1 to 4 are expected")
    return tensors


def session_of(payload: bytes | bytearray | memoryview) -> int:
    """The session of a tensor payload, of which no more is known than that; 0 for one cut short."""
    return int.from_bytes(payload[:8], "little") if len(payload) >= PREFIX_BYTES else 0


def _group(t: Tensor) -> tuple[int, ...]:
    return (t.session, t.epoch, t.base, t.settled, t.first, t.rows, t.layer, t.kind, t.route)
