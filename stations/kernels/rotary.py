"""Rotary embedding tables with the same bits on every machine.

Frequencies come from decimal arithmetic and angles' cosines from + − × alone, in f64: the powers and cosines of C and
numpy libraries differ in the last bit from machine to machine, and a table entry may round to another f32 then.
"""

from __future__ import annotations

import decimal
import math

import numpy as np
import numpy.typing as npt

from ..models.card import Rope

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_DECIMAL_DIGITS = 40
_GROWTH_POSITIONS = 2048  # tables grow by at least so many positions

# π/2 in three parts of 33 bits, so that n · part is exact for n < 2²⁰ (fdlibm, __ieee754_rem_pio2)
_TWO_OVER_PI = 6.36619772367581382433e-01
_HALF_PI = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
MAX_ANGLE = 1.6e6
# sin x = x + x³·S(x²), cos x = 1 − x²/2 + x⁴·C(x²) for |x| ≤ π/4 (fdlibm, k_sin and k_cos), highest power first
_SIN_TERMS = (
    1.58969099521155010221e-10,
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
    -1.66666666666666324348e-01,
)
_COS_TERMS = (
    -1.13596475577881948265e-11,
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)


def rotary_frequencies(rope: Rope) -> F64:
    """Radians a position for each pair, f64 [dim / 2]: theta^(−2i/dim), then the model's factors or Llama 3 scaling.

    The scaling's formula is the one of Llama 3.1's reference code (`apply_scaling`).
    """
    with decimal.localcontext(decimal.Context(prec=_DECIMAL_DIGITS)):
        theta = decimal.Decimal(rope.theta)
        values = [float(theta ** (decimal.Decimal(-2 * i) / rope.dim)) for i in range(rope.dim // 2)]
    if rope.factors is not None:
        values = [value / factor for value, factor in zip(values, rope.factors, strict=True)]
    if rope.scaling is not None:
        scaling = rope.scaling
        longest = scaling.original_context / scaling.low_freq_factor
        shortest = scaling.original_context / scaling.high_freq_factor
        for i, value in enumerate(values):
            wavelength = 2 * math.pi / value
            if wavelength > longest:
                values[i] = value / scaling.factor
            elif wavelength >= shortest:
                smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
                    scaling.high_freq_factor - scaling.low_freq_factor
                )
                values[i] = (1 - smooth) * value / scaling.factor + smooth * value
    return np.array(values, np.float64)


def cos_sin(angles: F64) -> tuple[F64, F64]:
    """Cosine and sine, f64, error below 1 ulp for |angle| ≤ MAX_ANGLE; the same bits on every IEEE machine."""
    n = np.rint(angles * _TWO_OVER_PI)
    x = ((angles - n * _HALF_PI[0]) - n * _HALF_PI[1]) - n * _HALF_PI[2]
    square = x * x
    sine = x + x * square * _horner(square, _SIN_TERMS)
    cosine = 1.0 - (0.5 * square - square * square * _horner(square, _COS_TERMS))
    quadrant = n.astype(np.int64) & 3
    swap = quadrant & 1 == 1
    cos = np.where(swap, sine, cosine) * np.where((quadrant == 1) | (quadrant == 2), -1.0, 1.0)
    sin = np.where(swap, cosine, sine) * np.where(quadrant >= 2, -1.0, 1.0)
    return cos, sin


def _horner(x: F64, terms: tuple[float, ...]) -> F64:
    value = np.full_like(x, terms[0])
    for term in terms[1:]:
        value = value * x + term
    return value


class RotaryTable:
    """Cosine and sine of every position so far, f32 [positions, dim] (cosines, then sines); grows on demand."""

    def __init__(self, rope: Rope) -> None:
        self.half = rope.dim // 2
        self.values: F32 = np.zeros((0, 2 * self.half), np.float32)
        self._frequencies = rotary_frequencies(rope)

    def upto(self, positions: int) -> F32:
        """The table with at least `positions` rows. Row p never changes, the array may be another one."""
        have = len(self.values)
        if positions > have:
            size = max(positions, have + _GROWTH_POSITIONS)
            angles = np.arange(have, size, dtype=np.float64)[:, None] * self._frequencies
            cos, sin = cos_sin(angles)
            rows = np.concatenate([cos, sin], axis=1).astype(np.float32)
            self.values = np.concatenate([self.values, rows])
        return self.values
