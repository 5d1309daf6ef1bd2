"""The cache wire, version 2: one layer's state as one little-endian record. Byte table: `docs/kv-cache.md`.

    0..4 "CMFS" · 4..8 version · 8..16 identity · 16..20 layer · 20 kind · 21 f16 · 22..24 zero · 24..32 position

then the body its kind names. `parse_record` checks everything, against the buffer's size before it reads and against
the layer it is meant for, and only then hands out arrays: whoever commits them cannot fail half-way. What is accepted
can be exported again to the same bytes. Knows nothing of storage, attention or sessions.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import KvFormError, RecordError

F32 = npt.NDArray[np.float32]

MAGIC = b"CMFS"
VERSION = 2
HEADER = struct.Struct("<4sIQIBBHQ")
FULL_HEAD = struct.Struct("<6I")
BOUNDED_HEAD = struct.Struct("<5I")
THREE = struct.Struct("<3I")
BASE = struct.Struct("<Q")
MAX_POSITION = 2**32 - 1  # positions are u32 on the wire between stations
DESCRIBED_MODES = ("f32", "f16")  # codes depend on when rows came, which no record tells

assert HEADER.size == 32


class RecordKind(IntEnum):
    """What a record's body is."""

    FULL = 0  # rows of K and V from position 0, importance, recurrent state
    LINEAR = 1  # a recurrent layer's state
    BOUNDED = 2  # a ring
    FULL_TAIL = 3  # FULL of a layer whose rows below `base` are gone


class LayerState(NamedTuple):
    """The layer a record comes from or is meant for. `window`: rows of its ring, 0 without; `linear_size`: values of
    its recurrent state, 0 while unknown."""

    kind: RecordKind
    layer: int
    identity: int
    num_kv_heads: int
    head_dim: int
    mode: str
    unversioned_allowed: bool
    window: int = 0
    linear_size: int = 0

    @property
    def geometry(self) -> str:
        return f"{self.num_kv_heads}×{self.head_dim}"


class FullRecord(NamedTuple):
    """A full layer's content. k, v: one f32 [rows, head_dim] a KV head, [0, head_dim] for a dead one."""

    f16: bool
    position: int
    base: int
    rows: int
    linear: F32
    importance: F32
    k: list[F32]
    v: list[F32]


class LinearRecord(NamedTuple):
    """A recurrent layer's state vector; f32 on the wire whatever `f16` says."""

    f16: bool
    position: int
    state: F32


class BoundedRecord(NamedTuple):
    """A ring's k and v, f32 [kv_heads, window, head_dim]."""

    f16: bool
    position: int
    k: F32
    v: F32


Record = FullRecord | LinearRecord | BoundedRecord


def export_record(layer: LayerState, record: Record) -> bytes:
    """The record's bytes. Raises KvFormError for a state that the format does not describe."""
    kind = layer.kind
    match record:
        case FullRecord():
            _check_describable(layer, record)
            kind = RecordKind.FULL_TAIL if record.base else kind
            body = ([BASE.pack(record.base)] if record.base else []) + _full_body(layer, record)
        case LinearRecord():
            head = THREE.pack(layer.num_kv_heads, layer.head_dim, record.state.size)
            body = [head, record.state.astype("<f4").tobytes()]
        case BoundedRecord():
            length, head_slot = min(record.position, layer.window), record.position % layer.window
            body = [BOUNDED_HEAD.pack(layer.num_kv_heads, layer.head_dim, layer.window, length, head_slot)]
            body += [_values_to_bytes(ring, record.f16) for ring in (record.k, record.v)]
    header = HEADER.pack(MAGIC, VERSION, layer.identity, layer.layer, kind, record.f16, 0, record.position)
    return header + b"".join(body)


def _check_describable(layer: LayerState, record: FullRecord) -> None:
    if layer.mode not in DESCRIBED_MODES:
        raise KvFormError(f"KV mode {layer.mode} has no wire record: only F32 and F16 rows are described by it")
    if layer.mode == "f16" and not record.f16:
        raise KvFormError("an F16 cache is exported as f16 only: its rows were rounded on append")
    if record.position != record.base + record.rows:
        raise KvFormError(
            f"{record.rows} rows from position {record.base} do not reach depth {record.position}: an evicted cache"
            " has no wire record"
        )


def _full_body(layer: LayerState, record: FullRecord) -> list[bytes]:
    head = (record.f16, record.rows, layer.num_kv_heads, layer.head_dim, len(record.linear), len(record.importance))
    pieces = [FULL_HEAD.pack(*head), record.linear.astype("<f4").tobytes(), record.importance.astype("<f4").tobytes()]
    for k, v in zip(record.k, record.v, strict=True):
        for rows in (k, v):
            pieces += [struct.pack("<I", rows.size), _values_to_bytes(rows, record.f16)]
    return pieces


def _values_to_bytes(values: F32, f16: bool) -> bytes:
    if not f16:
        return values.astype("<f4").tobytes()
    with np.errstate(over="raise"):
        try:
            return values.astype("<f2").tobytes()
        except FloatingPointError:
            raise KvFormError(f"values up to {np.abs(values).max():g} do not fit f16 (65504): export as f32") from None


class _Reader:
    """A cursor over a record; every read is checked against what is left before anything is copied."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def _take(self, size: int, what: str) -> memoryview:
        if size > self.left:
            raise RecordError(f"record cut short: {what} needs {size} bytes, {self.left} follow")
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def fields(self, layout: struct.Struct, what: str) -> tuple[int, ...]:
        return layout.unpack(self._take(layout.size, what))

    def u32(self, what: str) -> int:
        return int.from_bytes(self._take(4, what), "little")

    def values(self, count: int, f16: bool, what: str) -> F32:
        raw = self._take(count * (2 if f16 else 4), what)
        values = np.frombuffer(raw, "<f2" if f16 else "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise RecordError(f"{what} holds a value that is not finite")
        return values

    def end(self) -> None:
        if self.left:
            raise RecordError(f"{self.left} trailing bytes after the record")


def parse_record(layer: LayerState, data: memoryview) -> Record:
    """A layer's content from a versioned record, or from an unversioned body where that is allowed.

    Raises RecordError for another version, kind, identity, layer or geometry, for anything cut short, left over,
    inconsistent or not finite.
    """
    reader = _Reader(data)
    if bytes(data[:4]) != MAGIC:
        if not layer.unversioned_allowed or layer.kind is not RecordKind.FULL:
            raise RecordError("an unversioned record carries no operator identity: only plain full layers accept one")
        record: Record = _parse_full(reader, layer, None, 0)
    else:
        kind, f16, position = _parse_header(reader, layer)
        match kind:
            case RecordKind.LINEAR:
                record = _parse_linear(reader, layer, f16, position)
            case RecordKind.BOUNDED:
                record = _parse_bounded(reader, layer, f16, position)
            case _:
                base = reader.fields(BASE, "the base")[0] if kind is RecordKind.FULL_TAIL else 0
                if kind is RecordKind.FULL_TAIL and not base:
                    raise RecordError("a tail with base 0: a full record is expected")
                record = _parse_full(reader, layer, f16, base)
                if record.position != position:
                    raise RecordError(f"header position {position} is not base {base} + {record.rows} rows")
    reader.end()
    return record


def _parse_header(reader: _Reader, layer: LayerState) -> tuple[RecordKind, bool, int]:
    _, version, identity, index, kind, f16, reserved, position = reader.fields(HEADER, "the header")
    if version != VERSION:
        raise RecordError(f"cache wire version {version}: this is version {VERSION}")
    if reserved or f16 > 1:
        raise RecordError(f"reserved bytes 22..24 are {reserved:#06x} and byte 21 is {f16}: 0 and 0 or 1 are allowed")
    if identity != layer.identity:
        raise RecordError(f"operator identity {identity:016x} in the record, {layer.identity:016x} here")
    if index != layer.layer:
        raise RecordError(f"the record is of layer {index}, this is layer {layer.layer}")
    if kind != layer.kind and not (kind == RecordKind.FULL_TAIL and layer.kind is RecordKind.FULL):
        raise RecordError(f"record kind {kind} does not match this layer's kind {layer.kind.name} ({layer.kind})")
    if position > MAX_POSITION:
        raise RecordError(f"position {position} is beyond {MAX_POSITION}")
    return RecordKind(kind), bool(f16), position


def _check_geometry(layer: LayerState, heads: int, head_dim: int) -> None:
    if (heads, head_dim) != (layer.num_kv_heads, layer.head_dim):
        raise RecordError(f"the record is {heads}×{head_dim}, this layer is {layer.geometry}")


def _parse_linear(reader: _Reader, layer: LayerState, f16: bool, position: int) -> LinearRecord:
    heads, head_dim, size = reader.fields(THREE, "the body's head")
    _check_geometry(layer, heads, head_dim)
    if layer.linear_size and size != layer.linear_size:
        raise RecordError(f"a recurrent state of {size} values, this layer's has {layer.linear_size}")
    return LinearRecord(f16, position, reader.values(size, False, "the recurrent state"))


def _parse_bounded(reader: _Reader, layer: LayerState, f16: bool, position: int) -> BoundedRecord:
    heads, head_dim, window, length, head = reader.fields(BOUNDED_HEAD, "the body's head")
    if (heads, window, head_dim) != (layer.num_kv_heads, layer.window, layer.head_dim) or not window:
        raise RecordError(
            f"the record's ring is {heads}×{window}×{head_dim}, this layer's"
            f" {layer.num_kv_heads}×{layer.window}×{layer.head_dim}"
        )
    if (length, head) != (min(position, window), position % window):
        raise RecordError(f"length {length} and head {head} do not fit position {position} in a ring of {window}")
    count = heads * window * head_dim
    k, v = (reader.values(count, f16, f"ring {name}").reshape(heads, window, head_dim) for name in ("K", "V"))
    if k[:, length:].any() or v[:, length:].any():
        raise RecordError(f"a ring of {length} rows has values behind them")
    return BoundedRecord(f16, position, k, v)


def _parse_full(reader: _Reader, layer: LayerState, header_f16: bool | None, base: int) -> FullRecord:
    flag, rows, heads, head_dim, num_linear, num_importance = reader.fields(FULL_HEAD, "the body's head")
    if flag > 1 or (header_f16 is not None and flag != header_f16):
        raise RecordError(f"f16 is {flag} in the body, {header_f16} in the header")
    _check_geometry(layer, heads, head_dim)
    if layer.mode not in DESCRIBED_MODES:
        raise RecordError(f"a record for a cache in KV mode {layer.mode}: F32 and F16 caches take one")
    if layer.mode == "f16" and not flag:
        raise RecordError("an f32 record for an F16 cache: rows would be rounded a second time")
    if num_importance != rows:
        raise RecordError(f"{num_importance} importance values for {rows} rows")
    if rows > MAX_POSITION:
        raise RecordError(f"{rows} rows are beyond position {MAX_POSITION}")
    linear = reader.values(num_linear, False, "the recurrent state")
    importance = reader.values(num_importance, False, "importance")
    if np.signbit(importance).any():
        raise RecordError("importance holds a negative value: it is a sum of probabilities")
    k: list[F32] = []
    v: list[F32] = []
    for head in range(heads):
        for stream, out in (("K", k), ("V", v)):
            count = reader.u32(f"the length of {stream} of head {head}")
            if count not in (0, rows * head_dim):
                raise RecordError(f"{stream} of head {head} has {count} values: 0 or {rows}×{head_dim} are allowed")
            out.append(reader.values(count, bool(flag), f"{stream} of head {head}").reshape(-1, head_dim))
        if len(k[-1]) != len(v[-1]):
            raise RecordError(f"head {head} has {len(k[-1])} rows of K and {len(v[-1])} of V")
    return FullRecord(bool(flag), base + rows, base, rows, linear, importance, k, v)
