"""K and V in 8 bits: a scale per 32 channels of a K row, one per V row, and columns frozen once.

    s = max(absmax / 127, 1e-12)      q = clamp(round(x / col / s), ±127), halves away from zero

`col` is 1 until `freeze`: then every stored row is decoded, col_d becomes the root mean square of channel d, at least
1e-6, and all rows are coded again against it. K codes lie in tiles of 16 rows like exact K, their scales in
`[slots, tiles, groups, 16]`.
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
    add_weighted,
    blocks_of,
    next_capacity,
    tile_dots,
)
from .table import Form

I8 = npt.NDArray[np.int8]
KEY_GROUP = 32  # channels that share a scale in K: logits feel the error of a dot product
FREEZE_ROWS = 64  # rows at whose sight columns are frozen
LEAST_SCALE = np.float32(1e-12)
LEAST_COLUMN = np.float32(1e-6)


def round_away(x: F32) -> F32:
    """To the nearest integer, halves away from zero. Exact: x − trunc(x) has no rounding error."""
    whole = np.trunc(x)
    return cast(F32, np.where(np.abs(x - whole) >= np.float32(0.5), whole + np.copysign(np.float32(1), x), whole))


def encode8(rows: F32, columns: F32 | None, group: int) -> tuple[I8, F32]:
    """rows [..., dim] → codes [..., dim], scales [..., groups], one per `group` channels; the last may be short."""
    scaled = rows if columns is None else rows / columns
    dim = rows.shape[-1]
    starts = np.arange(0, dim, group)
    scales = np.maximum(np.maximum.reduceat(np.abs(scaled), starts, axis=-1) / np.float32(127), LEAST_SCALE)
    codes = np.clip(round_away(scaled / np.repeat(scales, group, axis=-1)[..., :dim]), -127, 127)
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
    """K in 8 bits."""

    __slots__ = ("scales", "tiles")
    PARTS: ClassVar = {"tiles": LANES, "scales": LANES}
    FIELDS: ClassVar = KEYS

    def __init__(self, slots: int, head_dim: int, capacity: int = 0) -> None:
        super().__init__(slots, head_dim)
        tiles = next_capacity(capacity, 0) // LANES
        self.tiles = aligned_zeros((slots, tiles, padded(head_dim), LANES), np.int8)
        self.scales = aligned_zeros((slots, tiles, -(-head_dim // KEY_GROUP), LANES), np.float32)

    def append(self, rows: F32) -> None:
        codes, scales = self._encode(rows, KEY_GROUP)
        at = np.arange(self.rows, self.rows + len(rows))
        self.tiles[:, at // LANES, : self.head_dim, at % LANES] = codes
        self.scales[:, at // LANES, :, at % LANES] = scales
        self.rows += len(rows)

    def read(self, slot: int, first: int, upto: int) -> F32:
        at = np.arange(first, upto)
        codes = self.tiles[slot, at // LANES, : self.head_dim, at % LANES].astype(np.float32)
        scales = np.repeat(self.scales[slot, at // LANES, :, at % LANES], KEY_GROUP, axis=1)[:, : self.head_dim]
        return self._decoded(slot, codes * scales)

    def stored_bytes(self) -> int:
        return self._bytes(int(self.scales.shape[2]))

    def dots(self, slot: int, q: F32, first: int, upto: int) -> F32:
        if self.columns is not None:
            q = q * self.columns[slot]
        out = np.empty((len(q), upto - first), np.float32)
        for lo, hi in blocks_of(first, upto):
            tile, end = lo // LANES, -(-hi // LANES)
            total = np.zeros((len(q), (end - tile) * LANES), np.float32)
            for group in range(self.scales.shape[2]):
                dims = slice(group * KEY_GROUP, (group + 1) * KEY_GROUP)
                scales = self.scales[slot, tile:end, group].reshape(-1)
                total += tile_dots(q[:, dims], self.tiles[slot, tile:end, dims]) * scales
            out[:, lo - first : hi - first] = total[:, lo - tile * LANES : hi - tile * LANES]
        return out


class Values8(Coded8):
    """V in 8 bits."""

    __slots__ = ("array", "scales")
    PARTS: ClassVar = {"array": 1, "scales": 1}
    FIELDS: ClassVar = VALUES

    def __init__(self, slots: int, head_dim: int, capacity: int = 0) -> None:
        super().__init__(slots, head_dim)
        rows = next_capacity(capacity, 0)
        self.array = aligned_zeros((slots, rows, padded(head_dim)), np.int8)
        self.scales = aligned_zeros((slots, rows), np.float32)

    def append(self, rows: F32) -> None:
        codes, scales = self._encode(rows, self.head_dim)
        at = slice(self.rows, self.rows + len(rows))
        self.array[:, at, : self.head_dim] = codes.swapaxes(0, 1)
        self.scales[:, at] = scales[..., 0].T
        self.rows += len(rows)

    def read(self, slot: int, first: int, upto: int) -> F32:
        return self._decoded(slot, self.array[slot, first:upto, : self.head_dim] * self.scales[slot, first:upto, None])

    def stored_bytes(self) -> int:
        return self._bytes(1)

    def weigh(self, slot: int, weights: F32, first: int, upto: int, acc: F32) -> None:
        """The codes are summed as they are, weighted by w_j · s_j, and meet their columns at the end."""
        part = np.zeros_like(acc)
        for lo, hi in blocks_of(first, upto):
            scaled = weights[:, lo - first : hi - first] * self.scales[slot, lo:hi]
            add_weighted(scaled, self.array[slot, lo:hi].astype(np.float32), part)
        acc += part if self.columns is None else part * self.columns[slot]
