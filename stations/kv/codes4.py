"""K and V in 4 bits, 0 to 15, with a scale and a minimum in f16: x ≈ minimum + scale · code.

K shares them over 32 rows of a channel (K per row is ruined at few bits: its channels differ widely), V over 32
channels of a row. K therefore only takes whole groups of 32 rows. Both are read in whole numbers
(`docs/kv-cache.md`, *4 bits in whole numbers*), codes from their middle: x ≈ middle + scale · (code − 7.5).
"""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from .memory import LANES, aligned_zeros, padded
from .streams import F32, I64, KEYS, VALUES, StoredRows, blocks_of, next_capacity
from .table import Form
from .whole_numbers import LEVEL_STEPS, QUERY4_STEPS, seen_products, whole_numbers, whole_weights

U8 = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]
F64 = npt.NDArray[np.float64]
GROUP = 32  # rows of a channel (K) or channels of a row (V) that share a scale and a minimum
TOP = 15
WORD_CODES = 8  # codes in a word of a K tile
SHIFTS = np.arange(0, 4 * WORD_CODES, 4, dtype=np.uint32)
F16_MAX = np.float32(65504)
QUAD = 4  # rows of V side by side
MIDDLE = np.float32(TOP / 2)


def encode4(values: F32, axis: int) -> tuple[U8, F16, F16]:
    """Codes of `values` over groups that fill `axis` (length 32), scales and minima without that axis.

    Both are rounded to f16 first; the codes are those nearest to (x − minimum) / scale, ties to even. An infinity or
    NaN makes both NaN: a group that holds one is no numbers, as its rows would be uncoded.
    """
    low, high = values.min(axis=axis), values.max(axis=axis)
    with np.errstate(invalid="ignore", over="ignore"):
        is_number = np.isfinite(high - low)
    low = np.where(is_number, np.clip(low, -F16_MAX, F16_MAX), np.float32(np.nan)).astype(np.float16)
    minimum = low.astype(np.float32)
    scale = np.clip((high - minimum) / np.float32(TOP), 0, F16_MAX).astype(np.float16)
    step = scale.astype(np.float32)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    codes = values - np.expand_dims(minimum, axis)
    codes *= np.expand_dims(inverse, axis)
    np.rint(codes, out=codes)
    np.fmin(codes, np.float32(TOP), out=codes)
    np.fmax(codes, np.float32(0), out=codes)
    return codes.astype(np.uint8), scale, low


def _middles(scales: F16, minima: F16) -> tuple[F32, F32]:
    """Scales and middles in f32."""
    scale = scales.astype(np.float32)
    return scale, minima.astype(np.float32) + MIDDLE * scale


def _centred(total: F64, whole: F64, unit: F32) -> F32:
    """Sums of whole · code [n, …] over what `whole` [n, …] holds, with codes from their middle, times the unit."""
    sums = whole.sum(axis=1, keepdims=True)
    return cast(F32, (2 * total - TOP * sums).astype(np.float32) * (unit / np.float32(2))[:, None])


def _halves(packed: npt.NDArray[np.generic]) -> tuple[F32, F32]:
    byte = cast(U8, packed)
    return (byte & TOP).astype(np.float32), (byte >> 4).astype(np.float32)


class Coded4(StoredRows):
    """What K and V in 4 bits share: minima beside the scales."""

    __slots__ = ("minima", "scales")
    FORM = Form.Q4
    scales: F16
    minima: F16

    def describe(self, fields: I64) -> None:
        super().describe(fields)
        fields[self.FIELDS.column] = self.minima.ctypes.data


class Keys4(Coded4):
    """K in 4 bits. Whole groups of 32 rows, two tiles of 16, come, stay and go. Nibble n of word w of a tile is dim
    8w + n."""

    __slots__ = ("words",)
    PARTS: ClassVar = {"words": LANES, "scales": GROUP, "minima": GROUP}
    FIELDS: ClassVar = KEYS

    def __init__(self, slots: int, head_dim: int, capacity: int = 0) -> None:
        super().__init__(slots, head_dim)
        rows, dim = next_capacity(capacity, 0), padded(head_dim)
        self.words = aligned_zeros((slots, rows // LANES, dim // WORD_CODES, LANES), np.uint32)
        self.scales = aligned_zeros((slots, rows // GROUP, dim), np.float16)
        self.minima = aligned_zeros((slots, rows // GROUP, dim), np.float16)

    def append(self, rows: F32) -> None:
        """A multiple of 32 rows."""
        self.reserve(self.rows + len(rows))
        codes, scales, minima = encode4(rows.reshape(-1, GROUP, self.slots, self.head_dim), axis=1)
        wide = np.zeros((len(rows), self.slots, self.scales.shape[2]), np.uint32)
        wide[..., : self.head_dim] = codes.reshape(rows.shape)
        words = np.bitwise_or.reduce(wide.reshape(len(rows), self.slots, -1, WORD_CODES) << SHIFTS, axis=3)
        at = slice(self.rows // LANES, (self.rows + len(rows)) // LANES)
        self.words[:, at] = words.reshape(-1, LANES, *words.shape[1:]).transpose(2, 0, 3, 1)
        groups = slice(self.rows // GROUP, (self.rows + len(rows)) // GROUP)
        self.scales[:, groups, : self.head_dim] = scales.swapaxes(0, 1)
        self.minima[:, groups, : self.head_dim] = minima.swapaxes(0, 1)
        self.rows += len(rows)

    def _tiles(self, slot: int, first_group: int, upto_group: int) -> F32:
        """Codes of whole groups as f32 [tiles, padded_dim, 16]."""
        words = self.words[slot, 2 * first_group : 2 * upto_group]
        codes = words[:, :, None, :] >> SHIFTS[:, None] & TOP
        return cast(F32, codes.reshape(len(words), -1, LANES).astype(np.float32))

    def read(self, slot: int, first: int, upto: int) -> F32:
        lo, hi = first // GROUP, -(-upto // GROUP)
        codes = self._tiles(slot, lo, hi).transpose(0, 2, 1).reshape(hi - lo, GROUP, -1)
        scale, minimum = (a[slot, lo:hi, None].astype(np.float32) for a in (self.scales, self.minima))
        rows = (codes * scale + minimum).reshape((hi - lo) * GROUP, -1)
        return cast(F32, rows[first - lo * GROUP : upto - lo * GROUP, : self.head_dim])

    def stored_bytes(self) -> int:
        return self.rows // GROUP * self.slots * self.head_dim * (GROUP // 2 + 4)

    def dots(self, slot: int, q: F32, first: int, upto: int) -> F32:
        """unit · (Σ_d whole_d code_d − 7.5 Σ_d whole_d) + Σ_d q_d middle_d, group by group."""
        out = np.empty((len(q), upto - first), np.float32)
        for group in range(first // GROUP, -(-upto // GROUP)):
            scale, middle = _middles(self.scales[slot, group], self.minima[slot, group])
            whole, unit = whole_numbers(q * scale, QUERY4_STEPS)
            codes = self._tiles(slot, group, group + 1).swapaxes(1, 2).reshape(GROUP, -1).astype(np.float64)
            level = np.add.accumulate(q * middle, axis=1, dtype=np.float32)[:, -1:]
            scores = _centred(whole @ codes.T, whole, unit) + level
            start = group * GROUP
            lo, hi = max(first, start), min(upto, start + GROUP)
            out[:, lo - first : hi - first] = scores[:, lo - start : hi - start]
        return out


class Values4(Coded4):
    """V in 4 bits, whole groups of 32 rows, as K: [slots, rows / 4, groups, 16, 4 rows].

    Byte j of a row's group holds channels j (low nibble) and 16 + j (high). Scales and minima [slots, rows / 16,
    groups, 16].
    """

    __slots__ = ("nibbles",)
    PARTS: ClassVar = {"nibbles": QUAD, "scales": LANES, "minima": LANES}
    FIELDS: ClassVar = VALUES

    def __init__(self, slots: int, head_dim: int, capacity: int = 0) -> None:
        super().__init__(slots, head_dim)
        rows, groups = next_capacity(capacity, 0), -(-head_dim // GROUP)
        self.nibbles = aligned_zeros((slots, rows // QUAD, groups, LANES, QUAD), np.uint8)
        self.scales = aligned_zeros((slots, rows // LANES, groups, LANES), np.float16)
        self.minima = aligned_zeros((slots, rows // LANES, groups, LANES), np.float16)

    def append(self, rows: F32) -> None:
        """A multiple of 32 rows."""
        self.reserve(self.rows + len(rows))
        groups = self.nibbles.shape[2]
        # a short last group is filled up with its own first channel, which changes neither minimum nor maximum
        source = np.minimum(np.arange(groups * GROUP), self.head_dim - 1)
        source[self.head_dim :] = (groups - 1) * GROUP
        codes, scales, minima = encode4(rows[..., source].reshape(len(rows), self.slots, groups, GROUP), axis=3)
        packed = codes[..., :LANES] | codes[..., LANES:] << 4
        at = slice(self.rows // QUAD, (self.rows + len(rows)) // QUAD)
        self.nibbles[:, at] = packed.reshape(-1, QUAD, *packed.shape[1:]).transpose(2, 0, 3, 4, 1)
        at = slice(self.rows // LANES, (self.rows + len(rows)) // LANES)
        for array, given in ((self.scales, scales), (self.minima, minima)):
            array[:, at] = given.reshape(-1, LANES, *given.shape[1:]).transpose(2, 0, 3, 1)
        self.rows += len(rows)

    def _codes(self, slot: int, at: I64) -> F32:
        """Rows `at` as f32 [n, groups · 32]."""
        return np.concatenate(_halves(self.nibbles[slot, at // QUAD, :, :, at % QUAD]), axis=-1).reshape(len(at), -1)

    def _scales(self, slot: int, at: I64) -> tuple[F32, F32]:
        """Scales and middles of rows `at`, [n, groups] each."""
        tile, lane = at // LANES, at % LANES
        return _middles(self.scales[slot, tile, :, lane], self.minima[slot, tile, :, lane])

    def read(self, slot: int, first: int, upto: int) -> F32:
        at = np.arange(first, upto)
        scale = self.scales[slot, at // LANES, :, at % LANES].astype(np.float32)
        minimum = self.minima[slot, at // LANES, :, at % LANES].astype(np.float32)
        scale, minimum = (np.repeat(a, GROUP, axis=1) for a in (scale, minimum))
        return cast(F32, (self._codes(slot, at) * scale + minimum)[:, : self.head_dim])

    def stored_bytes(self) -> int:
        return self.rows * self.slots * (-(-self.head_dim // 2) + 4 * int(self.scales.shape[2]))

    def weigh(self, slot: int, weights: F32, first: int, upto: int, ends: I64, acc: F32) -> None:
        """Weights times row scales as whole numbers, times codes from their middle; then weights times middles."""
        at = np.arange(first, upto)
        scales, middles = self._scales(slot, at)
        for group in range(scales.shape[1]):
            dims = slice(group * GROUP, min((group + 1) * GROUP, acc.shape[1]))
            whole, unit = whole_weights(weights, scales[:, group], ends - first)
            levels, level_unit = whole_numbers(seen_products(weights, middles[:, group]), LEVEL_STEPS)
            total = np.zeros((len(acc), dims.stop - dims.start), np.float64)
            for lo, hi in blocks_of(first, upto):
                codes = self._codes(slot, np.arange(lo, hi))[:, dims].astype(np.float64)
                total += whole[:, lo - first : hi - first] @ codes
            acc[:, dims] += _centred(total, whole, unit)
            acc[:, dims] += (levels.sum(axis=1).astype(np.float32) * level_unit)[:, None]
