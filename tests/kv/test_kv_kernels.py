"""The compiled attention: close to the plain version, and every row's bits independent of its company."""

from __future__ import annotations

import numpy as np
import pytest

from stations.kv import LayerKvCache

from .fast_attention import fast_attend
from .fast_store import fast_append
from .kv_rows import bits, filled, softmax_attention, some_rows

EXACT = ["f32", "f16"]
CODED = ["q8", "q8k", "q8v", "q4"]
MODES = [*EXACT, *CODED]
OPTIONS = [{}, {"window": 16}, {"window": 1}, {"window": 500}, {"softcap": 3.0}, {"scale": 0.4}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dim", "per_kv"), [(64, 3), (8, 1), (24, 2), (80, 4), (128, 7), (32, 20)])
def test_compiled_attention_is_close_to_the_plain_version(mode: str, dim: int, per_kv: int) -> None:
    cache, _, _ = filled(2, dim, 150, mode)
    q = some_rows(5, 37, 2 * per_kv, dim, spread=1.5)
    sinks = some_rows(6, 1, 1, 2 * per_kv)[0, 0]
    for options in [*OPTIONS, {"window": 16, "softcap": 5.0, "sinks": sinks}]:
        cache.sinks = options.get("sinks")
        plain = {name: value for name, value in options.items() if name != "sinks"}
        before, expected = cache.importance, np.zeros_like(q)
        cache.attend_chunk(q, 113, 2 * per_kv, expected, **plain)
        mass = np.zeros((37, 150), np.float32)
        out = fast_attend(cache, q, 113, mass=mass, **options)
        # exp's last bits differ: where a weight is a whole number, that may be one step of 2⁻¹⁶ of the largest
        assert np.abs(out - expected).max() < (4e-5 if mode in ("q8", "q8v", "q4") else 4e-6)
        assert np.abs(mass.sum(axis=0) - (cache.importance - before)).max() < 1e-4


def test_compiled_attention_matches_f64_at_32768_rows() -> None:
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, 32_768, 1, 64), np.float32)
    cache = LayerKvCache(1, 64)
    cache.append(k, v)
    q = rng.standard_normal((1, 2, 64), np.float32) * 4
    out = fast_attend(cache, q, 32_767)
    for h in range(2):
        expected, _ = softmax_attention(q[0, h], k[:, 0], v[:, 0], scale=1 / 8)
        assert np.abs(out[0, h] - expected).max() < 5e-5  # weights below half an ulp of the running sum are lost


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_rows_bits_do_not_depend_on_the_rows_and_heads_beside_it(mode: str, options: dict[str, float]) -> None:
    cache, _, _ = filled(2, 40, 190, mode)
    q = some_rows(5, 33, 10, 40, spread=3)
    whole = fast_attend(cache, q, 157, **options)
    for rows in (1, 2, 7, 16, 32):
        for start in range(0, 33, rows):
            part = fast_attend(cache, q[start : start + rows], 157 + start, **options)
            assert bits(part) == bits(whole[start : start + rows])
    for heads in (1, 2, 3, 4):
        assert bits(fast_attend(cache, q, 157, heads_at_once=heads, **options)) == bits(whole)


@pytest.mark.parametrize("mode", MODES)
def test_masses_do_not_depend_on_the_chunk(mode: str) -> None:
    cache, _, _ = filled(1, 16, 50, mode)
    q = some_rows(5, 20, 3, 16)
    whole = np.zeros((20, 50), np.float32)
    fast_attend(cache, q, 30, mass=whole)
    for row in range(20):
        alone = np.zeros((1, 50), np.float32)
        fast_attend(cache, q[row : row + 1], 30 + row, mass=alone)
        assert bits(alone[0]) == bits(whole[row])
    assert np.abs(whole.sum(axis=1) - 3).max() < 1e-5


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("window", [1, 7, 39, 40, 100])
def test_a_window_equals_a_cache_that_never_held_the_rows_before_it(mode: str, window: int) -> None:
    whole, k, v = filled(1, 16, 40, mode)
    q = some_rows(5, 1, 2, 16)
    rest = LayerKvCache(1, 16, mode)
    first = max(40 - window, 0)
    rest.append(k[first:], v[first:])
    assert bits(fast_attend(whole, q, 39, window=window)) == bits(fast_attend(rest, q, 39 - first))


def test_rows_behind_the_newest_visible_one_are_never_read() -> None:
    cache, _, _ = filled(1, 16, 21)
    q = some_rows(5, 1, 2, 16)
    before = fast_attend(cache, q, 20)
    cache.append(np.full((9, 1, 16), np.nan), np.full((9, 1, 16), np.inf))
    assert bits(fast_attend(cache, q, 20)) == bits(before)
    cache.truncate_last(9)
    assert bits(fast_attend(cache, q, 20)) == bits(before)


@pytest.mark.parametrize("dim", [64, 40, 8])
@pytest.mark.parametrize(("mode", "recent"), [*((mode, None) for mode in MODES), ("q8", 20)])
def test_compiled_code_stores_rows_bit_for_bit_as_the_plain_version(mode: str, recent: int | None, dim: int) -> None:
    k, v = some_rows(1, 230, 2, dim, spread=5), some_rows(2, 230, 2, dim)
    plain, compiled = (LayerKvCache(2, dim, mode, exact_recent=recent) for _ in range(2))
    plain.append(k, v)
    for part in (slice(0, 1), slice(1, 70), slice(70, 230)):
        fast_append(compiled, k[part], v[part])
    for head in range(2):
        assert bits(compiled.head_keys(head)) == bits(plain.head_keys(head))
        assert bits(compiled.head_values(head)) == bits(plain.head_values(head))
    assert compiled.memory_bytes() == plain.memory_bytes()


def test_halves_are_coded_away_from_zero_by_compiled_code_too() -> None:
    row = np.zeros((1, 1, 32), np.float32)
    row[0, 0, :6] = [127.0, 0.5, -0.5, 1.5, -2.5, np.nextafter(np.float32(0.5), np.float32(0))]
    cache = LayerKvCache(1, 32, "q8")
    fast_append(cache, row, row)
    assert cache.head_keys(0)[0, :6].tolist() == [127, 1, -1, 2, -3, 0]
    assert cache.head_values(0)[0, :6].tolist() == [127, 1, -1, 2, -3, 0]


def test_kernels_write_rows_behind_reserved_room_and_commit_them() -> None:
    cache = LayerKvCache(1, 16)
    k, v = some_rows(1, 100, 1, 16), some_rows(2, 100, 1, 16)
    for position in range(100):
        cache.reserve(1)
        cache._store.segments()[-1].keys.tiles[0, position // 16, :, position % 16] = k[position, 0]
        cache._store.segments()[-1].values.array[0, position] = v[position, 0]
        cache.commit(1)
        assert (cache.seq_len, cache.pos_len) == (position + 1, position + 1)
    expected = LayerKvCache(1, 16)
    expected.append(k, v)
    q = some_rows(5, 1, 2, 16)
    assert bits(fast_attend(cache, q, 99)) == bits(fast_attend(expected, q, 99))
    assert cache.export_wire() == expected.export_wire()


@pytest.mark.parametrize("mode", MODES)
def test_a_query_that_sees_no_row_gets_zeros_whatever_its_scratch_held(mode: str) -> None:
    cache, _, _ = filled(1, 24, 150, mode)
    sinks = np.array([0.5, -1], np.float32)
    for given in (None, sinks):
        assert not fast_attend(cache, some_rows(5, 1, 2, 24), -1, sinks=given).any()
