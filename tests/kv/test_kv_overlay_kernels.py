"""Compiled code on sealed groups: close to the plain version from seal to step, and rows taken back bit for bit."""

from __future__ import annotations

import os

import numpy as np
import pytest

from stations.kernels.fast.cache import CompileCache
from stations.kernels.fast.loader import LoadedUnits
from stations.kernels.fast.overlay import CompiledOverlay
from stations.kernels.fast.target import current_target
from stations.kernels.fast.units import ATTEND, OVERLAY
from stations.kv import OverlayShape, Rect
from stations.kv.overlay_group import PLAIN, GroupRows, OverlayGroup, overlay_wins
from stations.models.store import cache_folder

from .kv_rows import F32, bits, some_rows

GROUPS = [
    (16, 3, OverlayShape(8, 20, 4)),
    (64, 3, OverlayShape(32, 40, 0)),
    (24, 20, OverlayShape(13, 33, 2, Rect.FM)),  # more heads than are computed at once, nothing a multiple of 16
]


@pytest.fixture(scope="module")
def kernels() -> CompiledOverlay:
    cache = CompileCache(cache_folder(os.environ), current_target(os.environ), os.environ)
    names = [ATTEND, OVERLAY]
    cache.ensure(names)
    return CompiledOverlay(LoadedUnits(cache, names))


def prompt(rows: int, heads: int, dim: int) -> GroupRows:
    q = np.ascontiguousarray(some_rows(1, rows, heads, dim, 1.5).swapaxes(0, 1))
    return GroupRows(q, some_rows(2, rows, 1, dim, 1.5)[:, 0], some_rows(3, rows, 1, dim)[:, 0])


def step(kernels: CompiledOverlay, group: OverlayGroup, rows: GroupRows, row: int) -> F32:
    return kernels.step(group, np.ascontiguousarray(rows.q[:, row]), rows.k[row], rows.v[row])


@pytest.mark.parametrize("which", ["all", "some", "none"])
@pytest.mark.parametrize(("dim", "heads", "shape"), GROUPS)
def test_compiled_seals_and_steps_are_close_to_the_plain_version(
    kernels: CompiledOverlay, dim: int, heads: int, shape: OverlayShape, which: str
) -> None:
    rows = prompt(330, heads, dim)
    uses = {"all": np.ones(heads, bool), "some": np.arange(heads) % 2 == 0, "none": np.zeros(heads, bool)}[which]
    plain = OverlayGroup(shape, rows.upto(220), 0.2, uses)
    compiled = OverlayGroup(shape, rows.upto(220), 0.2, uses, kernels)
    if uses.any():
        largest = np.abs(plain.far_field.inverse).max()
        assert np.abs(plain.far_field.inverse - compiled.far_field.inverse).max() < 1e-5 * largest
    for row in range(220, 330):
        expected = plain.step(rows.q[:, row], rows.k[row], rows.v[row])
        assert np.abs(step(kernels, compiled, rows, row) - expected).max() < 1e-4
    assert compiled.rows == plain.rows == 330


@pytest.mark.parametrize(("dim", "heads", "shape"), GROUPS)
def test_compiled_rows_are_taken_back_bit_for_bit(
    kernels: CompiledOverlay, dim: int, heads: int, shape: OverlayShape
) -> None:
    rows = prompt(300, heads, dim)
    group = OverlayGroup(shape, rows.upto(220), 0.2, np.arange(heads) % 3 != 1, kernels)
    first = [bits(step(kernels, group, rows, row)) for row in range(220, 284)]
    group.take_back(40)
    assert [bits(step(kernels, group, rows, row)) for row in range(244, 284)] == first[24:]
    group.take_back(64)
    assert [bits(step(kernels, group, rows, row)) for row in range(220, 284)] == first


def test_the_guard_decides_alike_with_both(kernels: CompiledOverlay) -> None:
    rng = np.random.default_rng(0)
    noise = GroupRows(*(rng.standard_normal(s).astype(np.float32) for s in ((2, 400, 32), (400, 32), (400, 32))))
    flat = noise._replace(q=noise.q * np.float32(0.05))
    for rows, scale, wins in ((noise, 2.0, False), (flat, 0.2, True)):
        for chosen in (PLAIN, kernels):
            assert overlay_wins(OverlayShape(16, 32, 4), rows, scale, chosen).tolist() == [wins, wins]


def test_exact_rows_of_the_guard_are_attention_over_all_rows_before_them(kernels: CompiledOverlay) -> None:
    rows = prompt(150, 3, 40)
    assert np.abs(kernels.exact(rows, 118, 0.2) - PLAIN.exact(rows, 118, 0.2)).max() < 4e-6


def test_equal_landmarks_are_survived_by_a_larger_ridge(kernels: CompiledOverlay) -> None:
    one = np.ones((1, 200, 16), np.float32)
    group = OverlayGroup(OverlayShape(8, 20, 4), GroupRows(one, one[0], one[0]), 40.0, np.ones(1, bool), kernels)
    assert np.isfinite(group.far_field.inverse).all()
    out = kernels.step(group, one[:, 0], one[0, 0], one[0, 0])
    assert np.abs(out - 1).max() < 1e-3
