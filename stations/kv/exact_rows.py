"""Rows of K and V kept as they came, in f32 or rounded to f16: head-major, K in tiles of 16 positions.

One KV head's K is `[tiles, head_dim_padded, 16]` with the position in the last axis, so that a dot product over
head_dim runs down vectors of 16 positions without a horizontal sum; its V is `[capacity, head_dim_padded]`.
Padded dims are zero. Knows nothing of positions, generations or the wire: rows are counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from .memory import LANES, aligned_zeros, padded
from .table import Form, Segment

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
RowType = type[np.float32] | type[np.float16]
MIN_CAPACITY = 64  # rows; a multiple of 16
PLAIN_BLOCK_ROWS = 256  # keys that the plain version multiplies at once; bounds its temporaries


class ExactRows:
    """`rows` rows for `slots` KV heads (dead heads have no slot). `dtype` is f32 or f16."""

    __slots__ = ("_capacity", "dtype", "head_dim", "k", "padded_dim", "rows", "slots", "v")

    def __init__(self, slots: int, head_dim: int, dtype: RowType, capacity: int = 0) -> None:
        self.slots = slots
        self.head_dim = head_dim
        self.padded_dim = padded(head_dim)
        self.dtype = dtype
        self.rows = 0
        self._allocate(max(padded(capacity), MIN_CAPACITY))

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        tiles = (self.slots, capacity // LANES, self.padded_dim, LANES)
        self.k = cast("npt.NDArray[np.floating]", aligned_zeros(tiles, self.dtype))
        self.v = cast("npt.NDArray[np.floating]", aligned_zeros((self.slots, capacity, self.padded_dim), self.dtype))

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return self._capacity

    @property
    def row_bytes(self) -> int:
        """Bytes that one row of every slot stores in K and V, padding not counted."""
        return 2 * self.slots * self.head_dim * np.dtype(self.dtype).itemsize

    def reserve(self, rows: int) -> bool:
        """Room for `rows` more rows; True if the arrays moved. Grows by doubling, so appends are amortised O(1)."""
        needed = self.rows + rows
        if needed <= self._capacity:
            return False
        old_k, old_v, used = self.k, self.v, -(-self.rows // LANES)
        self._allocate(max(padded(needed), 2 * self._capacity))
        self.k[:, :used] = old_k[:, :used]
        self.v[:, : self.rows] = old_v[:, : self.rows]
        return True

    def append(self, k: F32, v: F32) -> None:
        """k, v [rows, slots, head_dim] f32; rounded to nearest even when the storage is f16."""
        count = len(k)
        self.reserve(count)
        at = np.arange(self.rows, self.rows + count)
        with np.errstate(over="ignore"):
            self.k[:, at // LANES, : self.head_dim, at % LANES] = k
            self.v[:, self.rows : self.rows + count, : self.head_dim] = v.swapaxes(0, 1)
        self.rows += count

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` rows."""
        self.rows = min(self.rows, rows)

    def gather(self, kept: I64) -> None:
        """Keep the rows named by `kept` (ascending), packed to the front."""
        count = len(kept)
        to = np.arange(count)
        self.k[:, to // LANES, :, to % LANES] = self.k[:, kept // LANES, :, kept % LANES]
        self.v[:, :count] = self.v[:, kept]
        self.rows = count

    def keys(self, slot: int, first: int = 0, upto: int | None = None) -> F32:
        """K rows [first, upto) of one slot, f32 [rows, head_dim]."""
        at = np.arange(first, self.rows if upto is None else upto)
        return self.k[slot, at // LANES, : self.head_dim, at % LANES].astype(np.float32)

    def values(self, slot: int, first: int = 0, upto: int | None = None) -> F32:
        """V rows [first, upto) of one slot, f32 [rows, head_dim]."""
        return self.v[slot, first : self.rows if upto is None else upto, : self.head_dim].astype(np.float32)

    def replace(self, k: Sequence[F32], v: Sequence[F32], rows: int) -> None:
        """Become `rows` rows given as one array [rows, head_dim] a slot for K and V each."""
        self.rows = 0
        shape = (rows, self.slots, self.head_dim)
        self.append(_by_row(k, shape), _by_row(v, shape))

    def describe(self, fields: I64) -> int:
        """Fill the table's segment fields (`table.py`); returns how many segments there are."""
        form = Form.F32 if self.dtype is np.float32 else Form.F16
        fields[Segment.FIRST] = 0
        fields[Segment.ROWS] = self.rows
        fields[Segment.K_FORM] = fields[Segment.V_FORM] = form
        fields[Segment.K], fields[Segment.K_STRIDE] = self.k.ctypes.data, self.k.strides[0]
        fields[Segment.V], fields[Segment.V_STRIDE] = self.v.ctypes.data, self.v.strides[0]
        return 1

    def dots(self, slot: int, q: F32, first: int, upto: int) -> F32:
        """q [n, padded_dim] → Σ_d q_d k_d, dims ascending, f32 [n, upto − first]."""
        out = np.empty((len(q), upto - first), np.float32)
        for lo in range(first // LANES, -(-upto // LANES), PLAIN_BLOCK_ROWS // LANES):
            tiles = self.k[slot, lo : min(lo + PLAIN_BLOCK_ROWS // LANES, -(-upto // LANES))].astype(np.float32)
            scores = np.add.reduce(q[:, None, :, None] * tiles[None], axis=2).reshape(len(q), -1)
            begin, end = max(first, lo * LANES), min(upto, lo * LANES + scores.shape[1])
            out[:, begin - first : end - first] = scores[:, begin - lo * LANES : end - lo * LANES]
        return out

    def weigh(self, slot: int, weights: F32, first: int, upto: int, acc: F32) -> None:
        """acc [n, padded_dim] += Σ_j weights[n, j − first] v_j over rows [first, upto), ascending, one add a row."""
        for lo in range(first, upto, PLAIN_BLOCK_ROWS):
            hi = min(lo + PLAIN_BLOCK_ROWS, upto)
            terms = np.empty((hi - lo + 1, *acc.shape), np.float32)
            terms[0] = acc
            values = self.v[slot, lo:hi].astype(np.float32)
            np.multiply(weights.T[lo - first : hi - first, :, None], values[:, None, :], out=terms[1:])
            acc[:] = np.add.reduce(terms, axis=0)


def _by_row(heads: Sequence[F32], shape: tuple[int, int, int]) -> F32:
    return np.stack(list(heads), axis=1) if heads else np.zeros(shape, np.float32)
