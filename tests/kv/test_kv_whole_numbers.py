"""Attention over 8-bit rows in whole numbers: how close it is, and that no order and no place of a row decides bits."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from stations.kernels.fast.target import current_target, settings_without
from stations.kv import LayerKvCache
from stations.kv.whole_numbers import QUERY8_STEPS, WEIGHT_STEPS, whole_numbers, whole_weights

from .fast_attention import fast_attend
from .fast_store import fast_append
from .kv_rows import bits, filled, softmax_attention, some_rows


def test_queries_and_weights_are_whole_within_half_a_unit_of_their_largest() -> None:
    q = some_rows(1, 1, 5, 48, spread=3)[0]
    whole, unit = whole_numbers(q, QUERY8_STEPS)
    assert np.abs(whole * unit[:, None].astype(np.float64) - q).max() <= unit.max() * 0.51
    assert np.abs(whole).max(axis=1).tolist() == [QUERY8_STEPS] * 5
    weights, scales = np.abs(some_rows(2, 1, 5, 48)[0]), np.abs(some_rows(3, 1, 1, 48)[0, 0])
    weights[:, 7] = 0
    scales[7] = np.nan  # a row that is not visible, whatever it holds
    whole, unit = whole_weights(weights, scales, np.full(5, 48))
    products = np.where(weights == 0, 0, weights * scales)
    assert np.abs(whole * unit[:, None].astype(np.float64) - products).max() <= unit.max()
    assert whole.max(axis=1).tolist() == [WEIGHT_STEPS] * 5
    assert not whole[:, 7].any()


def test_what_is_rounded_away_of_equal_weights_evens_out_wherever_they_begin() -> None:
    weights, scales = np.full((3, 600), 0.3 / WEIGHT_STEPS, np.float32), np.ones(600, np.float32)
    weights[:, 0] = 1
    whole, _ = whole_weights(weights, scales, np.array([600, 601, 777]))
    for start in (1, 2, 17, 80):
        assert np.abs(whole[:, start : start + 512].sum(axis=1) - 0.3 * 512).max() < 2
    assert whole[:, 1:].max() == 1


def test_numbers_without_an_end_are_not_lost_among_whole_ones() -> None:
    cache, _, _ = filled(1, 16, 90, "q8")
    for bad in (np.inf, -np.inf, np.nan):
        q = some_rows(5, 1, 2, 16)
        q[0, 1, 3] = bad
        out = fast_attend(cache, q, 89)
        assert np.isfinite(out[0, 0]).all()
        assert np.isnan(out[0, 1]).all()
        assert np.isnan(cache.attend(q[0, 1], 0)[0]).all()
    assert np.isfinite(fast_attend(cache, np.zeros((1, 1, 16), np.float32), 89)).all()


@pytest.mark.parametrize(("mode", "recent"), [("q8", 0), ("q8", 20), ("q4", 0), ("q4", 64)])
@pytest.mark.parametrize(("side", "bad"), [("k", np.nan), ("v", np.nan), ("v", np.inf)])
def test_a_stored_row_that_is_no_number_shows_in_every_result_over_it(
    mode: str, recent: int, side: str, bad: float
) -> None:
    rows = {"k": some_rows(1, 150, 1, 48), "v": some_rows(2, 150, 1, 48)}
    rows[side][90, 0, 7] = bad
    for append in (fast_append, LayerKvCache.append):
        cache = LayerKvCache(1, 48, mode, exact_recent=recent)
        append(cache, rows["k"], rows["v"])
        q = some_rows(5, 1, 2, 48)[0]
        with np.errstate(invalid="ignore"):
            plain = np.stack([cache.attend(one, 0)[0] for one in q])
        for out in (fast_attend(cache, q[None], 149)[0], plain):
            assert np.isnan(out).any(axis=1).all() or np.isinf(out).any(axis=1).all()


@pytest.mark.parametrize("dim", [64, 80])
def test_what_whole_numbers_add_is_far_below_what_8_bits_are_off_by(dim: int) -> None:
    cache, k, v = filled(1, dim, 400, "q8")
    q = some_rows(5, 1, 16, dim, spread=4)
    out = fast_attend(cache, q, 399)
    added, coded = [], []
    for h in range(16):
        decoded, _ = softmax_attention(q[0, h], cache.head_keys(0), cache.head_values(0), scale=dim**-0.5)
        exact, _ = softmax_attention(q[0, h], k[:, 0], v[:, 0], scale=dim**-0.5)
        added.append(out[0, h] - decoded)
        coded.append(decoded - exact)
    assert np.sqrt(np.mean(np.square(added))) < 0.02 * np.sqrt(np.mean(np.square(coded)))


def test_many_small_weights_beside_a_large_one_are_not_lost() -> None:
    rows, dim = 4000, 16
    k, v = np.zeros((rows, 1, dim), np.float32), np.ones((rows, 1, dim), np.float32)
    k[0, 0, 0], v[0, 0, 1::2] = 1, 0  # the first row has almost all the weight, and nothing to say of odd channels
    cache = LayerKvCache(1, dim, "q8")
    cache.append(k, v)
    q = np.zeros((1, 1, dim), np.float32)
    q[0, 0, 0] = 4 * 14.0  # the others weigh e^-14, 2^-20 of it
    expected, _ = softmax_attention(q[0, 0], cache.head_keys(0), cache.head_values(0), scale=0.25)
    for found in (fast_attend(cache, q, rows - 1)[0, 0], cache.attend(q[0, 0], 0)[0]):
        assert np.abs(found / expected - 1).max() < 0.02


@pytest.mark.parametrize("slack", [0, 1, 3, 16, 37])
def test_the_place_of_coded_rows_decides_no_bit(slack: int) -> None:
    cache, _, _ = filled(1, 40, 300, "q8")
    trimmed, _, _ = filled(1, 40, 300, "q8")
    assert trimmed.trim_window(100, slack, 1) == 200 - slack
    q = some_rows(5, 3, 3, 40, spread=3)
    whole = fast_attend(cache, q, 297, window=98)
    assert bits(fast_attend(trimmed, q, 97 + slack, window=98)) == bits(whole)


def test_sums_of_more_rows_than_a_word_holds_are_exact() -> None:
    rows, dim = 140_000, 16
    k, v = np.zeros((rows, 1, dim), np.float32), np.ones((rows, 1, dim), np.float32)
    v[:, 0, 1::2] = -1
    cache = LayerKvCache(1, dim, "q8", rows)
    cache.append(k, v)
    out = fast_attend(cache, np.ones((1, 1, dim), np.float32), rows - 1)[0, 0]
    assert np.abs(out - v[0, 0]).max() < 1e-6


def attention_digest() -> str:
    """Hash of what rows of every mode give, alone and in company."""
    digest = blake3()
    for dim in (24, 64):
        for mode in ("f32", "f16", "q8", "q4"):
            cache, _, _ = filled(1, dim, 300, mode)
            digest.update(fast_attend(cache, some_rows(5, 20, 5, dim, spread=3), 280).tobytes())
    return digest.hexdigest()


@pytest.mark.slow  # compiles attention for every target
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="features named here are x86's")
@pytest.mark.parametrize("feature", ["avx512", "avx512vnni", "avx2", None])
def test_a_cpu_with_less_makes_the_same_bits(feature: str | None, tmp_path: Path) -> None:
    less = settings_without(feature, current_target(os.environ)) if feature else {"NUMBA_CPU_NAME": "generic"}
    child = "from tests.kv.test_kv_whole_numbers import attention_digest; print(attention_digest())"
    done = subprocess.run(
        [sys.executable, "-c", child], env=os.environ | less | {"NUMBA_CACHE_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == attention_digest()
