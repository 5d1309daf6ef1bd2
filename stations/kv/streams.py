"""K and V of some heads as they came, f32 or rounded to f16: the two kinds of stream every storage is made of.

A key stream keeps K in tiles of 16 rows, `[slots, tiles, padded_dim, 16]`, the row in the last axis, so that a dot
product over head_dim runs down vectors of 16 rows without a horizontal sum. A value stream keeps V as
`[slots, capacity, padded_dim]`. Padded dims are zero. Streams count rows from 0 and know no positions; dead heads
have no slot. Coded streams (`codes8.py`, `codes4.py`) have the same methods.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from .memory import LANES, aligned_zeros, padded
from .table import Form, Segment

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
RowType = type[np.float32] | type[np.float16]
MIN_CAPACITY = 64  # rows
MOST_DOUBLED = 512  # rows
BLOCK_ROWS = 256  # rows that the plain version multiplies at once; bounds its temporaries


class Stream(Protocol):
    """Rows of K or of V."""

    rows: int

    @property
    def capacity(self) -> int:
        """Rows that fit without moving."""
        ...

    def reserve(self, rows: int) -> bool:
        """Room for `rows` rows in all; True if the arrays moved."""
        ...

    def append(self, rows: F32) -> None:
        """f32 [n, slots, head_dim]."""
        ...

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` rows."""
        ...

    def gather(self, kept: I64) -> None:
        """Keep the rows named, ascending, packed to the front."""
        ...

    def read(self, slot: int, first: int, upto: int) -> F32:
        """Rows [first, upto) of a slot as f32 [n, head_dim]: a copy, decoded."""
        ...

    def stored_bytes(self) -> int:
        """Bytes of the rows stored and of what belongs to all of them, padding and spare room not counted."""
        ...

    def describe(self, fields: I64) -> None:
        """Fill this stream's fields of a table segment."""
        ...


class KeyStream(Stream, Protocol):
    def dots(self, slot: int, q: F32, first: int, upto: int) -> F32:
        """q [n, padded_dim] → Σ_d q_d k_d, f32 [n, upto − first]."""
        ...


class ValueStream(Stream, Protocol):
    def weigh(self, slot: int, weights: F32, first: int, upto: int, ends: I64, acc: F32) -> None:
        """acc [n, padded_dim] += Σ_j weights[n, j − first] v_j over rows [first, upto), ascending, one add a row."""
        ...


def next_capacity(needed: int, capacity: int) -> int:
    """Rows to allocate, a multiple of 32: at least a third more than there is, so that appends are amortised O(1).

    Small arrays double. Spare rows of long ones are memory taken: they lie in large pages, with other arrays' rows.
    """
    grown = capacity + max(capacity // 3, min(capacity, MOST_DOUBLED))
    return -(-max(needed, grown, MIN_CAPACITY) // 32) * 32


def moved(old: Array, shape: tuple[int, ...], used: int) -> Array:
    """A zeroed array of `shape` that holds the first `used` entries of `old`'s second axis."""
    new = aligned_zeros(shape, old.dtype)
    new[:, :used] = old[:, :used]
    return new


def tile_dots(q: F32, tiles: Array) -> F32:
    """q [n, dims] against tiles [t, dims, 16] → [n, t · 16]; dims ascending, one product and one add each."""
    with np.errstate(over="ignore", invalid="ignore"):
        products = q[:, None, :, None] * tiles.astype(np.float32)[None]
        return cast(F32, np.add.reduce(products, axis=2)).reshape(len(q), -1)


def add_weighted(weights: F32, values: F32, acc: F32) -> None:
    """acc [n, dims] += weights[n, j] · values[j, dims], rows ascending, one add a row."""
    terms = np.empty((len(values) + 1, *acc.shape), np.float32)
    terms[0] = acc
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(weights.T[:, :, None], values[:, None, :], out=terms[1:])
        acc[:] = np.add.reduce(terms, axis=0)


def blocks_of(first: int, upto: int) -> list[tuple[int, int]]:
    """[first, upto) in pieces of BLOCK_ROWS, the first one cut at a multiple of it."""
    edges = [first, *range((first // BLOCK_ROWS + 1) * BLOCK_ROWS, upto, BLOCK_ROWS), upto]
    return list(pairwise(edges))


class StreamFields(NamedTuple):
    """Where a table's segment speaks of K or of V: the form; where rows and scales begin; their strides; columns."""

    form: Segment
    rows: Segment
    scale: Segment
    strides: tuple[Segment, Segment]
    column: Segment


KEYS = StreamFields(
    Segment.K_FORM, Segment.K, Segment.K_SCALE, (Segment.K_STRIDE, Segment.K_SCALE_STRIDE), Segment.K_COLUMN
)
VALUES = StreamFields(
    Segment.V_FORM, Segment.V, Segment.V_SCALE, (Segment.V_STRIDE, Segment.V_SCALE_STRIDE), Segment.V_COLUMN
)


class StoredRows:
    """What every stream is: a count of rows in arrays that grow, `PARTS` by name.

    An array is [slots, entries, …]; its number in `PARTS` says how many rows an entry holds.
    """

    __slots__ = ("head_dim", "rows", "slots")
    PARTS: ClassVar[dict[str, int]]
    FORM: Form
    FIELDS: ClassVar[StreamFields]

    def __init__(self, slots: int, head_dim: int) -> None:
        self.slots, self.head_dim, self.rows = slots, head_dim, 0

    @property
    def capacity(self) -> int:
        name, rows = next(iter(self.PARTS.items()))
        return int(getattr(self, name).shape[1]) * rows

    def reserve(self, rows: int) -> bool:
        capacity = self.capacity
        if rows <= capacity:
            return False
        grown = next_capacity(rows, capacity)
        for name, held in self.PARTS.items():
            array = getattr(self, name)
            setattr(self, name, moved(array, (self.slots, grown // held, *array.shape[2:]), -(-self.rows // held)))
        return True

    def truncate(self, rows: int) -> None:
        self.rows = rows

    def gather(self, kept: I64) -> None:
        """Whole entries only."""
        for name, held in self.PARTS.items():
            entries = kept[::held] // held
            array = getattr(self, name)
            array[:, : len(entries)] = array[:, entries]
        self.rows = len(kept)

    def describe(self, fields: I64) -> None:
        arrays = [getattr(self, name) for name in self.PARTS]
        fields[self.FIELDS.form] = self.FORM
        for array, at, stride in zip(arrays, (self.FIELDS.rows, self.FIELDS.scale), self.FIELDS.strides, strict=False):
            fields[at], fields[stride] = array.ctypes.data, array.strides[0]


class TiledRows(StoredRows):
    """Rows in the last axis of tiles of 16."""

    __slots__ = ()

    def gather(self, kept: I64) -> None:
        to = np.arange(len(kept))
        for name in self.PARTS:
            array = getattr(self, name)
            array[:, to // LANES, :, to % LANES] = array[:, kept // LANES, :, kept % LANES]
        self.rows = len(kept)


class ExactKeys(TiledRows):
    """K rows in f32 or f16."""

    __slots__ = ("FORM", "dtype", "tiles")
    PARTS: ClassVar = {"tiles": LANES}
    FIELDS: ClassVar = KEYS

    def __init__(self, slots: int, head_dim: int, dtype: RowType, capacity: int = 0) -> None:
        super().__init__(slots, head_dim)
        self.dtype = dtype
        self.FORM = Form.F32 if dtype is np.float32 else Form.F16
        shape = (slots, next_capacity(capacity, 0) // LANES, padded(head_dim), LANES)
        self.tiles = aligned_zeros(shape, dtype)

    def append(self, rows: F32) -> None:
        self.reserve(self.rows + len(rows))
        at = np.arange(self.rows, self.rows + len(rows))
        with np.errstate(over="ignore"):
            self.tiles[:, at // LANES, : self.head_dim, at % LANES] = rows
        self.rows += len(rows)

    def read(self, slot: int, first: int, upto: int) -> F32:
        at = np.arange(first, upto)
        return self.tiles[slot, at // LANES, : self.head_dim, at % LANES].astype(np.float32)

    def stored_bytes(self) -> int:
        return self.rows * self.slots * self.head_dim * int(self.tiles.itemsize)

    def dots(self, slot: int, q: F32, first: int, upto: int) -> F32:
        out = np.empty((len(q), upto - first), np.float32)
        for lo, hi in blocks_of(first, upto):
            tile = lo // LANES
            scores = tile_dots(q, self.tiles[slot, tile : -(-hi // LANES)])
            out[:, lo - first : hi - first] = scores[:, lo - tile * LANES : hi - tile * LANES]
        return out


class ExactValues(StoredRows):
    """V rows in f32 or f16."""

    __slots__ = ("FORM", "array", "dtype")
    PARTS: ClassVar = {"array": 1}
    FIELDS: ClassVar = VALUES

    def __init__(self, slots: int, head_dim: int, dtype: RowType, capacity: int = 0) -> None:
        super().__init__(slots, head_dim)
        self.dtype = dtype
        self.FORM = Form.F32 if dtype is np.float32 else Form.F16
        self.array = aligned_zeros((slots, next_capacity(capacity, 0), padded(head_dim)), dtype)

    def append(self, rows: F32) -> None:
        self.reserve(self.rows + len(rows))
        with np.errstate(over="ignore"):
            self.array[:, self.rows : self.rows + len(rows), : self.head_dim] = rows.swapaxes(0, 1)
        self.rows += len(rows)

    def read(self, slot: int, first: int, upto: int) -> F32:
        return self.array[slot, first:upto, : self.head_dim].astype(np.float32)

    def stored_bytes(self) -> int:
        return self.rows * self.slots * self.head_dim * int(self.array.itemsize)

    def weigh(self, slot: int, weights: F32, first: int, upto: int, ends: I64, acc: F32) -> None:
        for lo, hi in blocks_of(first, upto):
            add_weighted(weights[:, lo - first : hi - first], self.array[slot, lo:hi].astype(np.float32), acc)
