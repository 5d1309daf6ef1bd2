"""Coded rows: 8 and 4 bits, exact rows beside them, and the positions at which a cache changes its form."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow.kv_options import Barrier, next_barrier
from stations.kv import Born, KvFormError, LayerKvCache, RollbackError
from stations.kv.codes4 import encode4
from stations.kv.codes8 import encode8, round_away

from .kv_rows import F32, bits, filled, some_rows

CODED = [("q8", None), ("q8k", None), ("q8v", None), ("q8", 20), ("q8k", 40), ("q4", None), ("q4", 0)]
MODES = [("f16", None), *CODED]
# whole numbers: 16 bits a query or weight; 4-bit keys meet queries in 8 bits, a tenth of what their codes are off by
TOLERANCES = {"q8": 3e-5, "q8k": 3e-5, "q8v": 3e-5, "q4": 3e-3}


def rows_with_loud_channels(seed: int, rows: int, heads: int, dim: int) -> F32:
    return some_rows(seed, rows, heads, dim) * np.where(np.arange(dim) % 2, 0.25, 4.0).astype(np.float32)


def coded(mode: str, recent: int | None, heads: int = 2, dim: int = 32) -> LayerKvCache:
    return LayerKvCache(heads, dim, mode, exact_recent=recent)


def test_halves_are_rounded_away_from_zero_and_nothing_else_is() -> None:
    just_below = np.nextafter(np.float32(0.5), np.float32(0))
    x = np.array([0.5, -0.5, 1.5, 2.5, -2.5, just_below, -just_below, 2.4999998, 126.5], np.float32)
    assert round_away(x).tolist() == [1, -1, 2, 3, -3, 0, 0, 2, 127]


def test_8_bit_codes_have_a_scale_a_group_and_reach_127() -> None:
    row = np.zeros((1, 40), np.float32)
    row[0, 3], row[0, 35], row[0, 36] = -2.54, 127.0, 63.5
    codes, scales = encode8(row, None, 32)
    assert scales.tolist() == [[np.float32(2.54) / np.float32(127), 1.0]]
    assert codes[0, [3, 35, 36]].tolist() == [-127, 127, 64]
    _, tiny = encode8(np.zeros((1, 4), np.float32), None, 4)
    assert tiny.tolist() == [[np.float32(1e-12)]]


@pytest.mark.parametrize("mode", ["q8", "q8k", "q8v"])
def test_q8_rows_are_within_half_a_step_of_what_came_in(mode: str) -> None:
    cache, k, v = filled(2, 80, 50, mode)
    for head in range(2):
        for stored, given in ((cache.head_keys(head), k[:, head]), (cache.head_values(head), v[:, head])):
            step = np.abs(given).max(axis=1, keepdims=True) / 127
            assert (np.abs(stored - given) <= step * 0.5001).all()


def test_q8_attends_close_to_f32_and_takes_rollback_and_eviction() -> None:
    k, v = rows_with_loud_channels(1, 100, 2, 32), rows_with_loud_channels(2, 100, 2, 32)
    exact, q8 = LayerKvCache(2, 32), LayerKvCache(2, 32, "q8")
    exact.append(k, v)
    q8.append(k, v)
    q = some_rows(3, 1, 2, 32, spread=0.5)[0]
    for head in range(2):
        out, probs = exact.attend(q[head], head)
        out8, probs8 = q8.attend(q[head], head)
        assert np.abs(out - out8).max() <= np.abs(out).max() * 0.03 + 1e-3
        assert np.abs(probs - probs8).max() < 0.02
    q8.truncate_last(30)
    assert q8.head_len(0) == 70
    q8.accumulate_imp(np.arange(70, dtype=np.float32))
    q8.evict(20, Born(2))
    assert q8.head_len(0) == 20
    assert np.isfinite(q8.attend(q[0], 0)[0]).all()
    assert q8.memory_bytes() * 3 < exact.memory_bytes()


def test_8_bit_columns_are_frozen_before_the_65th_row_from_the_rows_that_stayed() -> None:
    cache = LayerKvCache(1, 32, "q8")
    k, v = rows_with_loud_channels(1, 70, 1, 32), rows_with_loud_channels(2, 70, 1, 32)
    cache.append(k[:60], v[:60])
    cache.append(k[:4] * 1000, v[:4])  # a rejected draft: it must not count
    cache.truncate_last(4)
    cache.append(k[60:64], v[60:64])
    before = cache.head_keys(0)
    generation = cache.generation
    cache.append(k[64:65], v[64:65])
    assert cache.generation != generation
    plain = LayerKvCache(1, 32, "q8")
    plain.append(k[:65], v[:65])
    assert bits(cache.head_keys(0)) == bits(plain.head_keys(0))
    columns = np.sqrt((before.astype(np.float64) ** 2).mean(axis=0))
    stored = cache._store.segments()[0].keys.columns[0, :32]
    assert np.abs(stored / columns - 1).max() < 1e-6


@pytest.mark.parametrize(("mode", "recent"), MODES)
def test_rows_one_by_one_are_stored_as_rows_at_once(mode: str, recent: int | None) -> None:
    k, v = some_rows(1, 230, 2, 24), some_rows(2, 230, 2, 24)
    whole, single = coded(mode, recent, dim=24), coded(mode, recent, dim=24)
    whole.append(k, v)
    for row in range(230):
        single.append(k[row], v[row])
    for head in range(2):
        assert bits(whole.head_keys(head)) == bits(single.head_keys(head))
        assert bits(whole.head_values(head)) == bits(single.head_values(head))
    assert whole.memory_bytes() == single.memory_bytes()


@pytest.mark.parametrize(("mode", "recent"), MODES)
def test_a_coded_group_equals_its_heads_one_at_a_time_bit_for_bit(mode: str, recent: int | None) -> None:
    cache = coded(mode, recent)
    cache.append(some_rows(1, 170, 2, 32), some_rows(2, 170, 2, 32))
    q = some_rows(5, 3, 2, 32)
    for head in range(2):
        out, importance = np.zeros(96, np.float32), np.zeros(170, np.float32)
        cache.attend_group(q[:, head].ravel(), head, out, importance)
        expected = np.zeros(170, np.float32)
        for h in range(3):
            one, probs = cache.attend(q[h, head], head)
            assert bits(out.reshape(3, 32)[h]) == bits(one)
            expected += probs
        assert bits(importance) == bits(expected)


@pytest.mark.parametrize(("mode", "recent"), MODES)
@pytest.mark.parametrize("dim", [8, 40, 64])
def test_coded_attention_is_attention_over_the_decoded_rows(mode: str, recent: int | None, dim: int) -> None:
    cache = coded(mode, recent, heads=1, dim=dim)
    cache.append(some_rows(1, 200, 1, dim), some_rows(2, 200, 1, dim))
    decoded = LayerKvCache(1, dim)
    decoded.append(cache.head_keys(0), cache.head_values(0))
    q = some_rows(5, 2, 1, dim, spread=3)[:, 0]
    for first in (0, 37, 150, 199):
        outs = []
        for layer in (cache, decoded):
            out = np.zeros(2 * dim, np.float32)
            layer.attend_group(q.ravel(), 0, out, np.zeros(200, np.float32), first=first)
            outs.append(out)
        assert np.abs(outs[0] - outs[1]).max() < TOLERANCES.get(mode, 3e-6)


@pytest.mark.parametrize(("mode", "least"), [("q8", 3.5), ("q4", 5.5), ("f16", 2.0)])
def test_coded_rows_take_a_fraction_of_f32(mode: str, least: float) -> None:
    exact, coded_rows = LayerKvCache(3, 64), LayerKvCache(3, 64, mode)
    k = some_rows(1, 64, 3, 64)
    for _ in range(63):  # 4,032 rows
        exact.append(k, k)
        coded_rows.append(k, k)
    assert exact.memory_bytes() / coded_rows.memory_bytes() >= least


def test_4_bit_codes_stay_within_half_a_step_between_minimum_and_maximum() -> None:
    values = some_rows(1, 32, 3, 5, spread=7)
    codes, scales, minima = encode4(values, axis=0)
    assert codes.max() == 15
    assert codes.min() == 0
    back = codes * scales.astype(np.float32) + minima.astype(np.float32)
    assert (np.abs(back - values) <= scales.astype(np.float32) * 0.51 + 0.01).all()
    constant, zero_scale, level = encode4(np.full((32, 1), 3.0, np.float32), axis=0)
    assert (constant.any(), zero_scale.tolist(), level.tolist()) == (False, [0.0], [3.0])


@pytest.mark.parametrize(("mode", "recent"), [("q4", 64), ("q4", 0), ("q8", 20)])
def test_sinks_and_the_newest_rows_stay_exact_beside_coded_ones(mode: str, recent: int) -> None:
    k, v = some_rows(1, 300, 1, 32), some_rows(2, 300, 1, 32)
    cache = coded(mode, recent, heads=1)
    for row in range(300):
        cache.append(k[row], v[row])
        newest = max(row + 1 - max(recent, 1), 0)
        keys, values = cache.head_keys(0), cache.head_values(0)
        for exact in (slice(0, min(4, row + 1)), slice(newest if recent else row + 1, row + 1)):
            assert bits(keys[exact]) == bits(k[: row + 1, 0][exact])
            assert bits(values[exact]) == bits(v[: row + 1, 0][exact])
    assert not np.array_equal(keys[4:100], k[4:100, 0])


def test_barriers_name_the_positions_at_which_a_cache_changes_form() -> None:
    assert LayerKvCache(1, 8).barriers is None
    assert LayerKvCache(1, 8, "q8").barriers == Barrier(64)
    assert LayerKvCache(1, 8, "q4").barriers == Barrier(100, 32)
    assert LayerKvCache(1, 8, "q8", exact_recent=20).barriers == Barrier(88, 32)
    assert LayerKvCache(1, 8, "q4", exact_recent=0, exact_sinks=0).barriers == Barrier(32, 32)
    union = [Barrier(64), Barrier(100, 32)]
    assert [next_barrier(union, at) for at in (0, 63, 64, 100, 131, 132)] == [64, 64, 100, 132, 132, 164]
    assert next_barrier([Barrier(64)], 64) is None


@pytest.mark.parametrize(("mode", "recent"), CODED)
def test_a_cache_changes_form_at_its_barriers_only(mode: str, recent: int | None) -> None:
    cache = coded(mode, recent)
    barriers = cache.barriers
    assert barriers is not None
    expected = {p for p in range(300) if barriers.after(p - 1) == p}
    changed = set()
    for position in range(300):
        generation = cache.generation
        room = cache.room()
        if position not in expected:
            assert barriers.after(position) in (position + room, None)
        cache.append(some_rows(position, 1, 2, 32), some_rows(position + 500, 1, 2, 32))
        if cache.generation != generation:
            changed.add(position)
            assert cache.rollback_floor == position
    assert changed == expected


@pytest.mark.parametrize(("mode", "recent"), CODED)
def test_a_rollback_below_a_change_of_form_is_refused_and_changes_nothing(mode: str, recent: int | None) -> None:
    cache = coded(mode, recent)
    cache.append(some_rows(1, 140, 2, 32), some_rows(2, 140, 2, 32))
    floor = cache.rollback_floor
    keys = cache.head_keys(0)
    with pytest.raises(RollbackError, match=f"position {floor - 1}.*down to {floor}"):
        cache.truncate_to(floor - 1)
    assert bits(cache.head_keys(0)) == bits(keys)
    cache.truncate_to(floor)
    assert cache.pos_len == floor
    cache.clear()
    assert (cache.seq_len, cache.rollback_floor) == (0, 0)


@pytest.mark.parametrize(("mode", "recent"), MODES)
def test_rejected_rows_leave_no_trace(mode: str, recent: int | None) -> None:
    k, v, wrong = some_rows(1, 260, 2, 24), some_rows(2, 260, 2, 24), some_rows(3, 9, 2, 24, spread=50)
    plain, speculative = coded(mode, recent, dim=24), coded(mode, recent, dim=24)
    plain.append(k, v)
    rng = np.random.default_rng(1)
    at = 0
    while at < 260:
        if speculative.room() == 32:  # a form is due: the pass begins with accepted rows
            speculative.append(k[at], v[at])
            at += 1
        room = min(speculative.room(), 9)
        speculative.append(wrong[:room], wrong[:room])
        speculative.truncate_to(at)
        rows = min(int(rng.integers(1, 12)), 260 - at, speculative.room())
        speculative.append(k[at : at + rows], v[at : at + rows])
        at += rows
    for head in range(2):
        assert bits(plain.head_keys(head)) == bits(speculative.head_keys(head))
        assert bits(plain.head_values(head)) == bits(speculative.head_values(head))


def test_a_reserved_pass_may_not_cross_a_barrier() -> None:
    cache = LayerKvCache(1, 8, "q4")
    cache.append(some_rows(1, 90, 1, 8), some_rows(2, 90, 1, 8))
    with pytest.raises(KvFormError, match="11 rows at 90 stored rows crosses the state barrier 10 rows on"):
        cache.reserve(11)
    cache.reserve(10)
    cache.commit(10)
    assert len(cache._store.segments()) == 1
    cache.reserve(32)
    assert [pair.rows for pair in cache._store.segments()] == [4, 32, 64]
    with pytest.raises(KvFormError, match="33 rows"):
        cache.reserve(33)


@pytest.mark.parametrize("mode", ["q8", "q8k", "q8v", "q4"])
def test_coded_rows_are_refused_by_the_cache_wire_naming_f32(mode: str) -> None:
    cache, _, _ = filled(1, 8, 3, mode)
    with pytest.raises(KvFormError, match=f"{mode} has no wire record: only F32"):
        cache.export_wire()


def test_options_that_contradict_each_other_are_refused_by_name() -> None:
    for mode, recent, message in (
        ("f32", 64, "64 exact recent rows with KV mode f32"),
        ("f16", 1, "1 exact recent rows with KV mode f16"),
        ("q4", -1, "-1 exact recent rows"),
        ("q5", None, "'q5' is unknown; known are f32, f16, q8, q8k, q8v, q4"),
    ):
        with pytest.raises(KvFormError, match=message):
            LayerKvCache(1, 8, mode, exact_recent=recent)
    cache, _, _ = filled(1, 8, 120, "q4")
    with pytest.raises(KvFormError, match="eviction needs f32, f16 or plain q8"):
        cache.evict(10, Born())
    assert cache.seq_len == 120


@pytest.mark.parametrize("mode", ["q8", "q8k", "q8v", "q4"])
def test_dead_heads_stay_empty_in_coded_caches(mode: str) -> None:
    cache = LayerKvCache(2, 8, mode)
    cache.append(some_rows(1, 120, 2, 8), some_rows(2, 120, 2, 8), [False, True])
    assert (cache.head_len(0), cache.head_len(1)) == (0, 120)
    alone = LayerKvCache(1, 8, mode)
    alone.append(some_rows(1, 120, 2, 8)[:, 1], some_rows(2, 120, 2, 8)[:, 1])
    assert bits(cache.head_keys(1)) == bits(alone.head_keys(0))
    assert cache.memory_bytes() == alone.memory_bytes()
