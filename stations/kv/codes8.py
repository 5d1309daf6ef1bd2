"""K and V in 8 bits: a scale per 32 channels of a K row, one per V row, and columns frozen once.

    s = max(absmax / 127, 1e-12)      q = clamp(round(x / col / s), ±127), halves away from zero

`col` is 1 until `freeze`: then every stored row is decoded, col_d becomes the root mean square of channel d, at least
1e-6, and all rows are coded again against it. K codes lie in tiles of 16 rows like exact K, 4 dims of a row side by
side, their scales in `[slots, tiles, groups, 16]`; of V 4 rows lie side by side: bytes that one instruction multiplies
and adds. Queries and weights meet the codes as whole numbers (`docs/kv-cache.md`, *8 bits in whole numbers*): sums over
dims and rows are exact in any order.
"""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from .memory import LANES, aligned_zeros, padded
from .streams import (
    F32,
    I64,
    KEYS,
    VALUES,
    StoredRows,
    TiledRows,
    blocks_of,
    next_capacity,
)
from .table import Form
from .whole_numbers import QUERY8_STEPS, whole_numbers, whole_weights

I8 = npt.NDArray[np.int8]
KEY_GROUP = 32  # channels that share a scale in K: logits feel the error of a dot product
FREEZE_ROWS = 64  # rows at whose sight columns are frozen
LEAST_SCALE = np.float32(1e-12)
LEAST_COLUMN = np.float32(1e-6)
WORD = 4  # codes side by side
KEY_BIAS = 128  # K codes are stored as unsigned bytes


def round_away(x: F32) -> F32:
    """To the nearest integer, halves away from zero. Exact: x − trunc(x) has no rounding error."""
    whole = np.trunc(x)
    return cast(F32, np.where(np.abs(x - whole) >= np.float32(0.5), whole + np.copysign(np.float32(1), x), whole))


def encode8(rows: F32, columns: F32 | None, group: int) -> tuple[I8, F32]:
    """rows [..., dim] → codes [..., dim], scales [..., groups], one per `group` channels; the last may be short.

    An infinity or NaN is the scale of its group, so that no score and no sum over the group is a number.
    """
    scaled = rows if columns is None else rows / columns
    dim = rows.shape[-1]
    starts = np.arange(0, dim, group)
    scales = np.maximum(np.maximum.reduceat(np.abs(scaled), starts, axis=-1) / np.float32(127), LEAST_SCALE)
    with np.errstate(invalid="ignore"):
        x = scaled / np.repeat(scales, group, axis=-1)[..., :dim]
        codes = np.where(np.isnan(x), np.float32(0), np.clip(round_away(x), -127, 127))
    return codes.astype(np.int8), scales.astype(np.float32)


def frozen_columns(rows: F32) -> F32:
    """rows [n, slots, head_dim] → the root mean square of each channel, [slots, head_dim]. One add a row."""
    squares = np.zeros(rows.shape[1:], np.float32)
    for row in rows:
        squares += row * row
    return cast(F32, np.maximum(np.sqrt(squares / np.float32(len(rows))), LEAST_COLUMN))


class Coded8(StoredRows):
    """What K and V in 8 bits share: columns."""

    __slots__ = ("columns",)
    FORM = Form.Q8

    def __init__(self, slots: int, head_dim: int) -> None:
        super().__init__(slots, head_dim)
        self.columns: F32 | None = None  # [slots, padded_dim], padded dims 1

    def append(self, rows: F32) -> None:
        raise NotImplementedError

    def read(self, slot: int, first: int, upto: int) -> F32:
        raise NotImplementedError

    def freeze(self) -> None:
        """Code every row again, against the rows' own root mean squares."""
        rows = np.stack([self.read(slot, 0, self.rows) for slot in range(self.slots)], axis=1)
        self.set_columns(frozen_columns(rows))
        self.rows = 0
        self.append(rows)

    def column(self, slot: int) -> F32 | None:
        """[head_dim], or None while columns are 1."""
        return None if self.columns is None else self.columns[slot, : self.head_dim]

    def _encode(self, rows: F32, group: int) -> tuple[I8, F32]:
        """Rows [n, slots, head_dim] that are appended, a scale for `group` channels."""
        self.reserve(self.rows + len(rows))
        return encode8(rows, None if self.columns is None else self.columns[:, : self.head_dim], group)

    def _decoded(self, slot: int, rows: F32) -> F32:
        """Codes times their scales, [n, head_dim], times the columns."""
        column = self.column(slot)
        return rows if column is None else rows * column

    def _bytes(self, scales: int) -> int:
        """With `scales` a row and slot."""
        columns = 0 if self.columns is None else 4 * self.slots * self.head_dim
        return self.rows * self.slots * (self.head_dim + 4 * scales) + columns

    def describe(self, fields: I64) -> None:
        super().describe(fields)
        fields[self.FIELDS.column] = 0 if self.columns is None else self.columns.ctypes.data

    def set_columns(self, columns: F32) -> None:
        """[slots, head_dim]: what rows appended from now on are coded against."""
        self.columns = np.ones((self.slots, padded(self.head_dim)), np.float32)
        self.columns[:, : self.head_dim] = columns


class Keys8(Coded8, TiledRows):
    """K in 8 bits: codes plus 128, [slots, tiles, padded_dim / 4, 16 rows, 4 dims]."""

    __slots__ = ("scales", "tiles")
    PARTS: ClassVar = {"tiles": LANES, "scales": LANES}
    FIELDS: ClassVar = KEYS

    def __init__(self, slots: int, head_dim: int, capacity: int = 0) -> None:
        super().__init__(slots, head_dim)
        tiles = next_capacity(capacity, 0) // LANES
        self.tiles = aligned_zeros((slots, tiles, padded(head_dim) // WORD, LANES, WORD), np.uint8)
        self.scales = aligned_zeros((slots, tiles, -(-head_dim // KEY_GROUP), LANES), np.float32)

    def append(self, rows: F32) -> None:
        codes, scales = self._encode(rows, KEY_GROUP)
        at = np.arange(self.rows, self.rows + len(rows))
        wide = np.full((len(rows), self.slots, padded(self.head_dim)), KEY_BIAS, np.uint8)
        wide[..., : self.head_dim] += codes.view(np.uint8)
        self.tiles[:, at // LANES, :, at % LANES] = wide.reshape(len(rows), self.slots, -1, WORD)
        self.scales[:, at // LANES, :, at % LANES] = scales
        self.rows += len(rows)

    def read(self, slot: int, first: int, upto: int) -> F32:
        at = np.arange(first, upto)
        scales = np.repeat(self.scales[slot, at // LANES, :, at % LANES], KEY_GROUP, axis=1)[:, : self.head_dim]
        return self._decoded(slot, self._codes(slot, at)[:, : self.head_dim] * scales)

    def _codes(self, slot: int, at: I64) -> F32:
        """Rows `at` as whole numbers, [n, padded_dim]."""
        words = self.tiles[slot, at // LANES, :, at % LANES]
        return words.reshape(len(at), padded(self.head_dim)).astype(np.float32) - np.float32(KEY_BIAS)

    def stored_bytes(self) -> int:
        return self._bytes(int(self.scales.shape[2]))

    def dots(self, slot: int, q: F32, first: int, upto: int) -> F32:
        """Whole numbers times whole numbers: exact in f64, in any order."""
        whole, unit = whole_numbers(q if self.columns is None else q * self.columns[slot], QUERY8_STEPS)
        out = np.empty((len(q), upto - first), np.float32)
        for lo, hi in blocks_of(first, upto):
            at = np.arange(lo, hi)
            codes = self._codes(slot, at).astype(np.float64)
            total = np.zeros((len(q), hi - lo), np.float32)
            for group in range(self.scales.shape[2]):
                dims = slice(group * KEY_GROUP, (group + 1) * KEY_GROUP)
                dot = (whole[:, dims] @ codes[:, dims].T).astype(np.float32)
                total += dot * self.scales[slot, at // LANES, group, at % LANES]
            out[:, lo - first : hi - first] = total * unit[:, None]
        return out


class Values8(Coded8):
    """V in 8 bits: [slots, rows / 4, padded_dim, 4 rows]."""

    __slots__ = ("array", "scales")
    PARTS: ClassVar = {"array": WORD, "scales": 1}
    FIELDS: ClassVar = VALUES

    def __init__(self, slots: int, head_dim: int, capacity: int = 0) -> None:
        super().__init__(slots, head_dim)
        rows = next_capacity(capacity, 0)
        self.array = aligned_zeros((slots, rows // WORD, padded(head_dim), WORD), np.int8)
        self.scales = aligned_zeros((slots, rows), np.float32)

    def append(self, rows: F32) -> None:
        codes, scales = self._encode(rows, self.head_dim)
        at = np.arange(self.rows, self.rows + len(rows))
        self.array[:, at // WORD, : self.head_dim, at % WORD] = codes
        self.scales[:, at] = scales[..., 0].T
        self.rows += len(rows)

    def gather(self, kept: I64) -> None:
        to = np.arange(len(kept))
        self.array[:, to // WORD, :, to % WORD] = self.array[:, kept // WORD, :, kept % WORD]
        self.scales[:, to] = self.scales[:, kept]
        self.rows = len(kept)

    def _codes(self, slot: int, first: int, upto: int) -> I8:
        at = np.arange(first, upto)
        return cast(I8, self.array[slot, at // WORD, :, at % WORD])

    def read(self, slot: int, first: int, upto: int) -> F32:
        codes = self._codes(slot, first, upto)[:, : self.head_dim]
        return self._decoded(slot, codes * self.scales[slot, first:upto, None])

    def stored_bytes(self) -> int:
        return self._bytes(1)

    def weigh(self, slot: int, weights: F32, first: int, upto: int, ends: I64, acc: F32) -> None:
        """Weights times row scales as whole numbers, times codes: exact in f64, in any order. Columns at the end."""
        whole, unit = whole_weights(weights, self.scales[slot, first:upto], ends - first)
        total = np.zeros(acc.shape, np.float64)
        for lo, hi in blocks_of(first, upto):
            total += whole[:, lo - first : hi - first] @ self._codes(slot, lo, hi).astype(np.float64)
        part = total.astype(np.float32) * unit[:, None]
        acc += part if self.columns is None else part * self.columns[slot]
