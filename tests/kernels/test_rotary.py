"""Rotary tables: right to the last f32 bit, and the same bits everywhere."""

from __future__ import annotations

import decimal
import math

import numpy as np
from blake3 import blake3

from stations.kernels.rotary import MAX_ANGLE, RotaryTable, cos_sin, rotary_frequencies
from stations.models.card import Rope, RopeScaling

GOLDEN = "9c466ee58a490547cce7088db3fd599f94dc1e6e31c32eda167bd90df194f5a7"


def test_frequencies_are_the_correctly_rounded_powers() -> None:
    found = rotary_frequencies(Rope(theta=100000.0, dim=64))
    with decimal.localcontext(decimal.Context(prec=60)):
        exact = [float(decimal.Decimal(100000) ** (decimal.Decimal(-i) / 32)) for i in range(32)]
    assert found.tolist() == exact


def test_cosines_and_sines_are_within_an_ulp_up_to_a_million_radians() -> None:
    angles = np.concatenate([np.linspace(0, 10, 4001), np.random.default_rng(0).uniform(0, MAX_ANGLE, 20000)])
    cos, sin = cos_sin(angles)
    exact = np.array([(math.cos(a), math.sin(a)) for a in angles.tolist()])
    assert np.abs(cos - exact[:, 0]).max() < 2.3e-16
    assert np.abs(sin - exact[:, 1]).max() < 2.3e-16


def test_the_table_of_a_real_model_has_these_bits() -> None:
    table = RotaryTable(Rope(theta=100000.0, dim=64))
    table.upto(3)
    rows = table.upto(8192)[:8192]
    assert rows.shape == (8192, 64)
    assert blake3(rows.astype("<f4").tobytes()).hexdigest() == GOLDEN


def test_rows_do_not_depend_on_how_the_table_grew() -> None:
    small, large = RotaryTable(Rope(theta=10000.0, dim=20)), RotaryTable(Rope(theta=10000.0, dim=20))
    for positions in (1, 2049, 2050, 9000):
        small.upto(positions)
    assert np.array_equal(small.upto(9000)[:9000], large.upto(9000)[:9000])


def test_llama3_scaling_leaves_short_waves_stretches_long_ones_and_blends_between() -> None:
    rope = Rope(theta=500000.0, dim=128, scaling=RopeScaling(8.0, 1.0, 4.0, 8192))
    plain, scaled = rotary_frequencies(Rope(theta=500000.0, dim=128)), rotary_frequencies(rope)
    wavelength = 2 * np.pi / plain
    short, long = wavelength < 8192 / 4, wavelength > 8192
    assert np.array_equal(scaled[short], plain[short])
    assert np.array_equal(scaled[long], plain[long] / 8)
    between = ~short & ~long
    assert between.sum() > 5
    smooth = (8192 / wavelength[between] - 1) / 3
    assert np.allclose(scaled[between], plain[between] * ((1 - smooth) / 8 + smooth), rtol=1e-15)


def test_factors_divide_the_frequencies() -> None:
    factors = tuple(1.0 + i for i in range(8))
    plain = rotary_frequencies(Rope(theta=10000.0, dim=16))
    assert np.array_equal(rotary_frequencies(Rope(theta=10000.0, dim=16, factors=factors)), plain / np.array(factors))
