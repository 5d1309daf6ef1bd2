"""Eviction: which rows stay, what they keep, and what attention sees afterwards."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stations.kv import Born, KvCache, KvFormError, KvShapeError, LayerKvCache, Recent, RollbackError, policy_named
from stations.kv.eviction import UNREAD_ROWS, expected_use
from stations.kv.importance import Importance

from .fast_attention import fast_attend
from .kv_rows import F32, bits, filled, some_rows


def test_recent_keeps_the_newest_rows_and_the_threshold_is_reached_at_the_maximum() -> None:
    stack = KvCache(2, 4, 8, 10)
    stack.policy = Recent()
    k = some_rows(1, 10, 4, 8)
    for layer in stack.layers:
        layer.append(k[:9], k[:9])
    assert not stack.needs_eviction()
    for layer in stack.layers:
        layer.append(k[9:], k[9:])
    assert stack.needs_eviction()
    stack.evict(4)
    assert not stack.needs_eviction()
    for layer in stack.layers:
        assert (layer.seq_len, layer.pos_len, layer.base, layer.head_len(0)) == (4, 10, 6, 4)
        assert bits(layer.head_keys(2)) == bits(k[6:, 2])
    assert stack.seq_len == 10


def test_born_keeps_the_sink_the_newest_and_the_heaviest() -> None:
    stack = KvCache(1, 1, 2, 16)
    stack.policy = Born(1)
    layer = stack.layers[0]
    for position in range(8):
        layer.append(np.full(2, position), np.full(2, position + 100))
    layer.accumulate_imp(np.array([0.05, 0.05, 0.05, 5.0, 0.05, 0.05, 0.05, 0.05], np.float32))
    stack.evict(4)
    assert layer.positions.tolist() == [0, 3, 6, 7]
    assert layer.head_keys(0)[:, 0].tolist() == [0, 3, 6, 7]
    assert layer.head_values(0)[:, 0].tolist() == [100, 103, 106, 107]
    assert layer.importance.tolist() == [np.float32(0.05), 5.0, np.float32(0.05), np.float32(0.05)]
    assert (layer.seq_len, layer.pos_len, layer.base) == (4, 8, 0)


def test_born_gives_ties_to_the_older_rows_and_never_exceeds_its_budget() -> None:
    equal = np.ones(10, np.float32)
    assert Born(2).kept(equal, 6).tolist() == [0, 1, 2, 7, 8, 9]
    assert Born(4).kept(equal, 3).tolist() == [0, 1, 2]
    assert Born(4).kept(equal, 5).tolist() == [0, 1, 2, 3, 9]
    assert Born(0).kept(equal, 1).tolist() == [9]
    assert Born().kept(equal, 10).tolist() == list(range(10))
    assert Born().sink == 4
    assert isinstance(KvCache(1, 1, 1, 1).policy, Born)


def use_of(latest: F32, total: F32, rows: int = 12, keep: int = 6, sink: int = 1) -> F32:
    return expected_use(latest, total, np.arange(rows), rows, Born(sink).contested(rows, keep))


def test_expected_use_adds_what_was_read_lately_and_since_the_row_came_in_means_of_those_that_may_leave() -> None:
    latest, total = np.zeros((2, 12), np.float32)
    latest[[0, 2, 5, 11]] = 900, 3, 1, 900  # the sink's and the newest rows' do not count
    total[[0, 2, 3, 11]] = 900, 10, 27, 900
    newer = np.arange(1, 9) / UNREAD_ROWS
    lately = np.array([0, 3, 0, 0, 1, 0, 0, 0]) / 0.5
    since = np.array([0, 1, 3, 0, 0, 0, 0, 0]) / 0.5  # ages 10 and 9
    found = use_of(latest, total)
    assert np.allclose(found[1:9], newer + lately + since, rtol=1e-6)
    assert not found[[0, 9, 10, 11]].any()
    assert Born(1).kept(found, 6).tolist() == [0, 2, 3, 9, 10, 11]


def test_of_rows_that_nothing_has_read_the_newer_are_expected_to_be_of_use() -> None:
    nothing = np.zeros(12, np.float32)
    assert Born(1).kept(use_of(nothing, nothing), 6).tolist() == [0, 7, 8, 9, 10, 11]
    few = nothing.copy()
    few[2] = 1.0
    assert Born(1).kept(use_of(few, few), 6).tolist() == [0, 2, 8, 9, 10, 11]
    even = np.arange(12, 0, -1, np.float32)  # in proportion to age: read alike
    assert Born(1).kept(use_of(nothing, even), 6).tolist() == [0, 7, 8, 9, 10, 11]
    assert not expected_use(nothing, nothing, np.arange(12), 12, slice(6, 6)).any()
    one = expected_use(few, few, np.arange(12), 12, slice(2, 3))
    assert one[2] == np.float32(2 + 1 / UNREAD_ROWS)
    far = np.array([0, 1, 2, 3, 500, 504, 505, 506])  # those that came long before are alike
    found = expected_use(nothing[:8], nothing[:8], far, 507, slice(1, 6)) * UNREAD_ROWS
    assert found.tolist() == [0, 0, 0, 0, 1, 5, 0, 0]


@given(
    masses=arrays(np.float32, (2, 40), elements=st.just(0.0) | st.floats(2**-9, 64, width=32)),
    gaps=arrays(np.int64, 40, elements=st.integers(1, 9)),
    keep=st.integers(1, 39),
    sink=st.integers(0, 6),
    row=st.integers(0, 39),
)
def test_a_row_that_stays_would_have_stayed_had_more_been_read_of_it_and_units_do_not_matter(
    masses: F32, gaps: npt.NDArray[np.int64], keep: int, sink: int, row: int
) -> None:
    policy, positions = Born(sink), np.cumsum(gaps)
    contested = policy.contested(40, keep)

    def kept(latest: F32, total: F32) -> list[int]:
        return policy.kept(expected_use(latest, total, positions, int(positions[-1]) + 1, contested), keep).tolist()

    chosen = kept(*masses)
    assert len(chosen) == keep
    assert kept(*masses * np.float32(0.25)) == chosen  # a power of two: no other rounding
    more = masses.copy()
    more[:, row] = 2 * more[:, row] + 1
    assert row in kept(*more) or row not in chosen


@pytest.mark.parametrize("mode", ["q8k", "q8v", "q8", "f16"])
def test_born_shrinks_both_storages_of_mixed_modes_and_keeps_matching_rows(mode: str) -> None:
    cache = LayerKvCache(1, 4, mode)
    for position in range(80):
        cache.append(np.full(4, position * 0.01), np.full(4, float(position)))
    cache.accumulate_imp(np.arange(80, dtype=np.float32))
    before = cache.memory_bytes()
    cache.evict(20, Born(4))
    assert cache.head_len(0) == 20
    assert cache.positions.tolist() == [0, 1, 2, 3, *range(64, 80)]
    assert cache.memory_bytes() < before / 2
    keys, values = cache.head_keys(0)[:, 0], cache.head_values(0)[:, 0]
    assert np.abs(keys - cache.positions * 0.01).max() < 0.01
    assert np.abs(values - cache.positions).max() < 0.5
    assert cache.attend(np.ones(4, np.float32), 0)[0][0] > 30


@pytest.mark.parametrize("mode", ["f32", "f16"])
@pytest.mark.parametrize("policy", [Born(4), Recent()])
def test_attention_after_eviction_is_dense_attention_with_the_dropped_rows_masked(
    mode: str, policy: Born | Recent
) -> None:
    cache, k, v = filled(1, 16, 20, mode)
    cache.accumulate_imp(some_rows(3, 1, 1, 20)[0, 0] + 1)
    cache.evict(8, policy)
    kept = cache.positions
    cache.append(some_rows(8, 3, 1, 16), some_rows(9, 3, 1, 16))
    masked = LayerKvCache(1, 16, mode)
    masked.append(np.concatenate([k[kept], some_rows(8, 3, 1, 16)]), np.concatenate([v[kept], some_rows(9, 3, 1, 16)]))
    assert cache.positions.tolist() == [*kept.tolist(), 20, 21, 22]
    q = some_rows(5, 3, 2, 16, spread=3)  # three rows at once: each sees the kept rows and those before it
    for first_row in (8, 9, 10):
        rows = q[first_row - 8 :]
        ours, theirs = np.zeros_like(rows), np.zeros_like(rows)
        cache.attend_chunk(rows, first_row, 2, ours)
        masked.attend_chunk(rows, first_row, 2, theirs)
        assert bits(ours) == bits(theirs)
        assert bits(fast_attend(cache, rows, first_row)) == bits(fast_attend(masked, rows, first_row))
    # against every row with the dropped ones at −inf, in f64
    full_k = np.concatenate([masked.head_keys(0)[: len(kept)], masked.head_keys(0)[len(kept) :]]).astype(np.float64)
    scores = full_k @ q[2, 0].astype(np.float64) / 4
    weights = np.exp(scores - scores.max())
    expected = weights / weights.sum() @ masked.head_values(0).astype(np.float64)
    assert np.abs(cache.attend(q[2, 0], 0)[0] - expected).max() < 1e-6


def test_the_position_counter_is_not_the_row_count_after_eviction() -> None:
    cache, k, v = filled(1, 4, 12)
    cache.evict(5, Born(2))
    assert (cache.seq_len, cache.pos_len) == (5, 12)
    cache.append(k[:2], v[:2])
    assert (cache.seq_len, cache.pos_len, cache.positions[-1]) == (7, 14, 13)
    cache.evict(4, Born(2))
    assert cache.positions.tolist() == [0, 1, 12, 13]
    cache.truncate_to(14)
    with pytest.raises(RollbackError, match="position 13"):
        cache.truncate_to(13)
    cache.append(k[:1], v[:1])
    cache.truncate_last(1)
    assert cache.pos_len == 14


def test_an_evicted_cache_has_no_wire_record_unless_it_is_a_tail() -> None:
    gapped, _, _ = filled(1, 4, 12)
    gapped.evict(5, Born(2))
    with pytest.raises(KvFormError, match="5 rows from position 0 do not reach depth 12"):
        gapped.export_wire()
    tail, k, _ = filled(1, 4, 12)
    tail.evict(5, Recent())
    other = LayerKvCache(1, 4)
    other.import_wire(tail.export_wire())
    assert (other.base, other.seq_len, other.pos_len) == (7, 5, 12)
    assert bits(other.head_keys(0)) == bits(k[7:, 0])


def test_rows_that_stay_keep_their_positions_even_if_none_of_them_is_the_newest() -> None:
    cache, k, v = filled(1, 4, 2)
    cache.evict(1, Born(3))
    assert (cache.positions.tolist(), cache.base, cache.pos_len) == ([0], 0, 2)
    cache.append(k[:1], v[:1])
    assert cache.positions.tolist() == [0, 2]


def test_an_eviction_that_drops_nothing_changes_nothing_and_one_to_nothing_is_refused() -> None:
    cache, _, _ = filled(1, 4, 12)
    generation = cache.generation
    assert cache.evict(12, Born()) == 0
    assert cache.generation == generation
    assert cache.evict(11, Born()) == 1
    assert cache.generation != generation
    with pytest.raises(KvShapeError, match="at least 1"):
        cache.evict(0, Born())
    with pytest.raises(KvShapeError, match="'oldest' is unknown"):
        policy_named("oldest")
    assert (policy_named("recent", 3), policy_named("born", 2)) == (Recent(3), Born(2))


def with_mass(position: int, row: int, mass: float) -> F32:
    """What the row at `position` has read: one row."""
    found = np.zeros(position + 1, np.float32)
    found[row] = mass
    return found


def test_what_the_rows_of_the_two_newest_blocks_have_read_is_known_apart_and_can_choose_the_rows_that_stay() -> None:
    cache, _, _ = filled(1, 4, 12)
    for position, row in ((3, 1), (5, 2), (7, 4), (9, 5)):
        cache.hold_imp(position, with_mass(position, row, position))
        cache.settle(position + 1)
        assert cache.latest_mass[row] == position
        if position < 9:
            cache.end_mass_block(position + 1)
            cache.end_mass_block(position + 1)  # a second time changes nothing
    assert cache.importance.tolist() == [0, 3, 5, 0, 7, 9, 0, 0, 0, 0, 0, 0]
    assert cache.latest_mass.tolist() == [0, 0, 0, 0, 7, 9, 0, 0, 0, 0, 0, 0]
    assert cache.evict(6, Born(1), cache.latest_mass) == 6
    assert cache.positions.tolist() == [0, 4, 5, 9, 10, 11]
    assert cache.latest_mass.tolist() == [0, 7, 9, 0, 0, 0]
    cache.end_mass_block(12)
    cache.hold_imp(12, np.full(6, 0.5))
    cache.settle(13)
    assert cache.latest_mass.tolist() == [0.5, 0.5, 9.5, 0.5, 0.5, 0.5]


def test_masses_join_in_the_order_of_positions_with_the_same_bits_whenever_rows_are_settled() -> None:
    masses = some_rows(4, 60, 1, 60)[:, 0] ** 2
    found = []
    for step, rejected in ((1, 0), (7, 0), (60, 0), (5, 3), (1, 4)):
        cache = LayerKvCache(1, 4)
        position = 0
        while position < 60:
            upto = min(position + step, 60, (position // 20 + 1) * 20)
            wrong = upto + rejected if upto < 57 else upto
            k = np.ones((wrong - position, 4), np.float32)
            cache.append(k, k)
            for at in range(position, wrong):
                cache.hold_imp(at, masses[at, : at + 1] if at < upto else np.full(at + 1, 99.0))
            cache.truncate_to(upto)
            cache.settle(upto)
            if upto % 20 == 0:
                cache.end_mass_block(upto)
            position = upto
        found.append((bits(cache.importance), bits(cache.latest_mass)))
    assert all(one == found[0] for one in found)
    lower = np.tril(masses)
    assert np.allclose(np.array(found[0][1], np.uint32).view(np.float32), lower[40:].sum(0), rtol=1e-5)


def test_masses_of_a_stored_row_cost_three_values_and_one_for_each_row_in_doubt() -> None:
    cache, _, _ = filled(1, 4, 10)
    plain = cache.memory_bytes()
    cache.hold_imp(8, np.ones(9))
    cache.hold_imp(9, np.ones(10))
    assert cache.memory_bytes() == plain + 2 * 4 * 10
    cache.settle(10)
    assert cache.memory_bytes() == plain + 4 * 10
    cache.end_mass_block(10)
    k = np.ones((30, 4), np.float32)
    cache.append(k, k)
    for at in range(10, 40):
        cache.hold_imp(at, np.ones(at + 1))
    cache.settle(40)
    assert cache.memory_bytes() == cache.rows_bytes() == plain * 4 + 3 * 4 * 40


def test_masses_that_have_joined_are_taken_back_down_to_the_end_of_the_last_block_only() -> None:
    cache, _, _ = filled(1, 4, 12)
    for at in range(12):
        cache.hold_imp(at, np.full(at + 1, 1.0))
        if at < 10:
            cache.settle(at + 1)
        if at == 5:
            cache.end_mass_block(6)
            at_end = cache.importance[:6].tolist(), cache.latest_mass[:6].tolist()
    assert (cache.rollback_floor, cache.restorable(11), cache.restorable(10), cache.restorable(9)) == (6, 11, 10, 6)
    cache.truncate_to(11)
    with pytest.raises(RollbackError, match="position 9: what rows up to 10 have read has joined since 6"):
        cache.truncate_to(9)
    assert cache.pos_len == 11
    cache.truncate_to(6)
    assert (cache.importance.tolist(), cache.latest_mass.tolist()) == at_end
    with pytest.raises(RollbackError, match="down to 6 only"):
        cache.truncate_to(5)


def test_scratch_that_is_used_again_holds_nothing_of_its_rows_and_that_of_long_passes_is_given_back() -> None:
    importance = Importance(64)
    few = importance.scratch(2, 20)
    few[:] = 5.0
    importance.hold(18, few)
    importance.settle(20, 20)
    again = importance.scratch(1, 10)
    assert np.shares_memory(few, again)
    assert not again.any()
    many = importance.scratch(40, 60)
    importance.hold(20, many)
    importance.settle(60, 60)
    assert not np.shares_memory(importance.scratch(1, 60), many)
