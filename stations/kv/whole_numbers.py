"""Numbers beside the largest of them as whole ones, so that sums of their products with codes are exact in any order.

`docs/kv-cache.md`, *8 bits in whole numbers* and *4 bits in whole numbers*.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

QUERY8_STEPS = 127 * 256  # a query's largest |q ⊙ col| beside 8-bit keys: two signed bytes, high · 256 + low
QUERY4_STEPS = 127  # its largest |q ⊙ scale| beside a group of 4-bit ones: a signed byte
LEVEL_STEPS = 1 << 21  # its largest weight times a 4-bit row's middle
WEIGHT_STEPS = 255 * 256  # a query's largest weight times row scale: two unsigned bytes
LOTS = 256  # parts of a step that decide whether a weight is rounded up, against its row's lot
LOT_STEP = 159  # from row to row: odd, near 256 / 1.618, so lots of a few rows lie far apart, those of 256 all differ
LEAST_TOP = np.float32(2.0**-100)  # below, all count as zeros: the inverse of tiny numbers overflows


def _scaled(x: F32, steps: int, parts: int) -> tuple[F32, F32]:
    """x [n, …] in `parts` parts of the largest |x| of a row / steps, and that, the unit, [n].

    Where one is an infinity or NaN: zeros, unit NaN.
    """
    top = np.abs(x).max(axis=1)
    is_number = np.isfinite(top)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where((top >= LEAST_TOP) & is_number, np.float32(steps) / top, np.float32(0)) * np.float32(parts)
        scaled = np.where(is_number[:, None], x * inverse[:, None], 0).astype(np.float32)
    return scaled, np.where(is_number, top / np.float32(steps), np.float32(np.nan)).astype(np.float32)


def whole_numbers(x: F32, steps: int) -> tuple[F64, F32]:
    """x [n, …] → whole numbers within ±steps, halves to even; units [n]: x ≈ whole · unit.

    An infinity or NaN: all zeros, unit NaN.
    """
    scaled, unit = _scaled(x, steps, 1)
    return np.rint(scaled).astype(np.float64), unit


def whole_weights(weights: F32, scales: F32, ends: I64) -> tuple[F64, F32]:
    """weights [n, rows] · scales [rows] → whole numbers up to WEIGHT_STEPS, the largest of each n; units [n].

    Rounded up where the 256ths left over and the row's lot, (ends[n] − 1 − row) · LOT_STEP modulo 256, reach 256: many
    small weights keep their sum. A row's distance from the newest that query n sees decides, not where it lies.
    """
    fine, unit = _scaled(seen_products(weights, scales), WEIGHT_STEPS, LOTS)
    lots = (ends[:, None] - 1 - np.arange(weights.shape[1])) * LOT_STEP % LOTS
    return ((fine.astype(np.int64) + lots) // LOTS).astype(np.float64), unit


def seen_products(weights: F32, numbers: F32) -> F32:
    """weights [n, rows] · numbers [rows], 0 where the weight is, whatever lies in rows that are not visible."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(weights == 0, np.float32(0), weights * numbers)
