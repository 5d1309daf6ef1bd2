"""What a layer's rows are stored in: streams of K and V, one pair or three in a row, and when they change form.

`PlainRows` is one pair: exact, or coded row by row (8 bits, whose columns are frozen once). `LayeredRows` keeps the
first rows and the newest ones exact and codes what lies between in groups of 32 rows, at state barriers. Both count
rows from 0; positions, generations and importance are the layer's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np

from aeonflow.kv_options import CODED_GROUP, CODED_MODES, MODES, Barrier

from .codes4 import Keys4, Values4
from .codes8 import FREEZE_ROWS, Keys8, Values8, frozen_columns
from .errors import KvFormError
from .streams import F32, I64, ExactKeys, ExactValues, KeyStream, Stream, ValueStream
from .table import SEGMENT_FIELDS, Segment

UNBOUNDED = 1 << 62
_EXACT_RECENT = {"q4": 64}  # rows of a cache that is not told; what sessions ask for is `KvOptions.recent_rows`


class RowPair:
    """K and V of the same rows: a segment of what attention runs over."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: KeyStream, values: ValueStream) -> None:
        self.keys = keys
        self.values = values

    @property
    def rows(self) -> int:
        return self.keys.rows

    def streams(self) -> tuple[Stream, Stream]:
        return self.keys, self.values

    def append(self, k: F32, v: F32) -> None:
        """f32 [rows, slots, head_dim]."""
        self.keys.append(k)
        self.values.append(v)

    def spare(self) -> int:
        """Rows that fit behind the stored ones."""
        return min(self.keys.capacity, self.values.capacity) - self.keys.rows

    def commit(self, rows: int) -> int:
        """Count rows that were written behind the stored ones; returns all of them."""
        self.keys.rows += rows
        self.values.rows += rows
        return self.keys.rows

    def gather(self, kept: I64) -> None:
        for stream in self.streams():
            stream.gather(kept)

    def truncate(self, rows: int) -> None:
        for stream in self.streams():
            stream.truncate(rows)

    def rows_of(self, first: int, upto: int, slots: int) -> tuple[F32, F32]:
        """Decoded K and V, f32 [rows, slots, head_dim] each."""
        k, v = ([s.read(slot, first, upto) for slot in range(slots)] for s in self.streams())
        return np.stack(k, axis=1), np.stack(v, axis=1)

    def dots(self, slot: int, q: F32, first: int, upto: int) -> F32:
        return self.keys.dots(slot, q, first, upto)

    def weigh(self, slot: int, weights: F32, first: int, upto: int, ends: I64, acc: F32) -> None:
        self.values.weigh(slot, weights, first, upto, ends, acc)


class RowStore(Protocol):
    """Storage of one layer's rows."""

    @property
    def rows(self) -> int: ...

    @property
    def barriers(self) -> Barrier | None:
        """When it changes form, in rows stored; None: never."""
        ...

    def segments(self) -> list[RowPair]:
        """In the order of their rows."""
        ...

    def change_form(self) -> bool:
        """Make the change that is due before the next row; True if there was one."""
        ...

    def room(self) -> int:
        """Rows that may be appended before the next change of form (the one that is due not counted)."""
        ...

    def append(self, k: F32, v: F32) -> None: ...

    def reserve(self, rows: int) -> bool:
        """Room behind the stored rows; True if arrays moved."""
        ...

    def spare(self) -> int:
        """Rows that fit behind the stored ones without moving anything."""
        ...

    def commit(self, rows: int) -> int:
        """Count rows that were written into that room; returns all rows stored."""
        ...

    def truncate(self, rows: int) -> None: ...

    def can_drop(self, count: int) -> bool:
        """Whether exactly `count` rows can leave the front."""
        ...

    def drop_front(self, count: int) -> None: ...

    def gather(self, kept: I64) -> None:
        """Raises KvFormError where single rows cannot leave."""
        ...


class PlainRows:
    """One pair of streams."""

    __slots__ = ("_coded", "_pair")

    def __init__(self, keys: KeyStream, values: ValueStream) -> None:
        self._pair = RowPair(keys, values)
        self._coded = [s for s in (keys, values) if isinstance(s, Keys8 | Values8)]

    @property
    def rows(self) -> int:
        return self._pair.rows

    @property
    def barriers(self) -> Barrier | None:
        return Barrier(FREEZE_ROWS) if self._coded else None

    @property
    def _is_open(self) -> bool:
        """8-bit columns are still 1."""
        return bool(self._coded) and self._coded[0].columns is None

    def segments(self) -> list[RowPair]:
        return [self._pair]

    def change_form(self) -> bool:
        if not self._is_open or self.rows < FREEZE_ROWS:
            return False
        for stream in self._coded:
            stream.freeze()
        return True

    def room(self) -> int:
        return FREEZE_ROWS - self.rows if self._is_open and self.rows < FREEZE_ROWS else UNBOUNDED

    def append(self, k: F32, v: F32) -> None:
        self._pair.append(k, v)

    def reserve(self, rows: int) -> bool:
        grown = [stream.reserve(self.rows + rows) for stream in self._pair.streams()]
        return any(grown)

    def spare(self) -> int:
        return self._pair.spare()

    def commit(self, rows: int) -> int:
        return self._pair.commit(rows)

    def truncate(self, rows: int) -> None:
        self._pair.truncate(rows)

    def can_drop(self, count: int) -> bool:
        # columns are taken from every row: dropping one before would change them
        return not self._is_open and count <= self.rows

    def drop_front(self, count: int) -> None:
        self._pair.gather(np.arange(count, self.rows))

    def gather(self, kept: I64) -> None:
        self._pair.gather(kept)


class LayeredRows:
    """`sinks` exact rows, then coded groups, then at least `recent` exact rows (and the open group)."""

    __slots__ = ("_body", "_recent", "_sink_rows", "_sinks", "_slots", "_tail")

    def __init__(self, slots: int, head_dim: int, body: RowPair, recent: int, sinks: int, capacity: int) -> None:
        self._slots = slots
        self._recent = recent
        self._sink_rows = sinks
        self._sinks = RowPair(*_exact(slots, head_dim, sinks))
        self._body = body
        self._tail = RowPair(*_exact(slots, head_dim, min(capacity, self._first_barrier + CODED_GROUP)))

    @property
    def rows(self) -> int:
        return self._sinks.rows + self._body.rows + self._tail.rows

    @property
    def _first_barrier(self) -> int:
        exact = self._sink_rows + self._recent
        takes_columns = isinstance(self._body.keys, Keys8) or isinstance(self._body.values, Values8)
        groups = max(-(-(FREEZE_ROWS - exact) // CODED_GROUP), 1) if takes_columns else 1
        return exact + groups * CODED_GROUP

    @property
    def barriers(self) -> Barrier | None:
        return Barrier(self._first_barrier, CODED_GROUP)

    @property
    def _next_barrier(self) -> int:
        """In rows stored now."""
        if not self._body.rows:
            return self._first_barrier
        return self._sinks.rows + self._body.rows + CODED_GROUP + self._recent

    def segments(self) -> list[RowPair]:
        return [pair for pair in (self._sinks, self._body) if pair.rows] + [self._tail]

    def change_form(self) -> bool:
        if self.rows < self._next_barrier:
            return False
        if not self._body.rows:
            self._settle_front()
        count = (self._tail.rows - self._recent) // CODED_GROUP * CODED_GROUP
        self._body.append(*self._tail.rows_of(0, count, self._slots))
        self._tail.gather(np.arange(count, self._tail.rows))
        return True

    def _settle_front(self) -> None:
        """Columns from every row so far, all exact; the first rows go where they stay."""
        k, v = self._tail.rows_of(0, self._tail.rows, self._slots)
        for stream, rows in ((self._body.keys, k), (self._body.values, v)):
            if isinstance(stream, Keys8 | Values8):
                stream.set_columns(frozen_columns(rows))
        if self._sink_rows:
            self._sinks.append(k[: self._sink_rows], v[: self._sink_rows])
            self._tail.gather(np.arange(self._sink_rows, self._tail.rows))

    def room(self) -> int:
        ahead = self._next_barrier - self.rows
        return ahead if ahead > 0 else CODED_GROUP

    def append(self, k: F32, v: F32) -> None:
        self._tail.append(k, v)

    def reserve(self, rows: int) -> bool:
        grown = [stream.reserve(self._tail.rows + rows) for stream in self._tail.streams()]
        return any(grown)

    def spare(self) -> int:
        return self._tail.spare()

    def commit(self, rows: int) -> int:
        return self._sinks.rows + self._body.rows + self._tail.commit(rows)

    def truncate(self, rows: int) -> None:
        self._tail.truncate(rows - self._sinks.rows - self._body.rows)

    def can_drop(self, count: int) -> bool:
        coded = count - self._sinks.rows
        whole = CODED_GROUP if isinstance(self._body.keys, Keys4) else 1
        return 0 <= coded < self._body.rows and coded % whole == 0

    def drop_front(self, count: int) -> None:
        coded = count - self._sinks.rows
        self._sinks.truncate(0)
        self._sink_rows = 0
        self._body.gather(np.arange(coded, self._body.rows))

    def gather(self, kept: I64) -> None:
        raise KvFormError("rows coded in groups cannot be evicted one by one: eviction needs f32, f16 or plain q8 rows")


def _exact(slots: int, head_dim: int, capacity: int) -> tuple[ExactKeys, ExactValues]:
    return ExactKeys(slots, head_dim, np.float32, capacity), ExactValues(slots, head_dim, np.float32, capacity)


def check_mode(mode: str, exact_recent: int | None) -> int:
    """The number of exact recent rows that the options ask for. Raises KvFormError for what does not go together."""
    if mode not in MODES:
        raise KvFormError(f"KV mode {mode!r} is unknown; known are {', '.join(MODES)}")
    recent = _EXACT_RECENT.get(mode, 0) if exact_recent is None else exact_recent
    if recent < 0:
        raise KvFormError(f"{recent} exact recent rows: 0 or more are allowed")
    if recent and mode not in CODED_MODES:
        raise KvFormError(
            f"{recent} exact recent rows with KV mode {mode}: only {', '.join(CODED_MODES)} code older rows"
        )
    return recent


def make_store(mode: str, slots: int, head_dim: int, capacity: int, recent: int, sinks: int) -> RowStore:
    """Empty storage of a mode that `check_mode` has passed."""
    dtype = np.float16 if mode == "f16" else np.float32
    keys: KeyStream
    values: ValueStream
    if mode == "q4":
        keys, values = Keys4(slots, head_dim, capacity), Values4(slots, head_dim, capacity)
    else:
        coded_k, coded_v = mode in ("q8", "q8k"), mode in ("q8", "q8v")
        keys = Keys8(slots, head_dim, capacity) if coded_k else ExactKeys(slots, head_dim, dtype, capacity)
        values = Values8(slots, head_dim, capacity) if coded_v else ExactValues(slots, head_dim, dtype, capacity)
    if mode == "q4" or recent:
        return LayeredRows(slots, head_dim, RowPair(keys, values), recent, sinks, capacity)
    return PlainRows(keys, values)


def read_rows(store: RowStore, slot: int, first: int, *, keys: bool) -> F32:
    """Stored rows from `first` on of one slot, decoded: f32 [rows, head_dim]."""
    pieces = []
    start = 0
    for pair in store.segments():
        lo = max(first - start, 0)
        if lo < pair.rows:
            pieces.append((pair.keys if keys else pair.values).read(slot, lo, pair.rows))
        start += pair.rows
    if not pieces:
        pieces = [store.segments()[0].keys.read(slot, 0, 0)]
    return cast(F32, np.concatenate(pieces))


def first_rows(store: RowStore, rows: int) -> list[RowPair]:
    """The first `rows` stored rows as segments that share the memory of the storage."""
    found = []
    for pair in store.segments():
        count = min(pair.rows, rows)
        rows -= count
        if count:
            keys, values = copy.copy(pair.keys), copy.copy(pair.values)
            keys.rows = values.rows = count
            found.append(RowPair(keys, values))
    return found


def describe(store: RowStore, fields: I64) -> int:
    """Fill the table's segments; returns how many there are."""
    start = 0
    segments: Sequence[RowPair] = store.segments()
    for index, pair in enumerate(segments):
        part = fields[index * SEGMENT_FIELDS : (index + 1) * SEGMENT_FIELDS]
        part[Segment.FIRST], part[Segment.ROWS] = start, pair.rows
        for stream in pair.streams():
            stream.describe(part)
        start += pair.rows
    return len(segments)


def stored_bytes(store: RowStore) -> int:
    """Bytes of every segment's rows, scales and columns."""
    return sum(stream.stored_bytes() for pair in store.segments() for stream in pair.streams())
