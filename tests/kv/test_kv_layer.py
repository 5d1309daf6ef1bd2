"""The layer cache: layout, counters, dead heads, truncation, bytes, maxima, generation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stations.kv import KvCache, KvShapeError, LayerKvCache

from .kv_rows import bits, filled, some_rows


def test_one_row_of_4_heads_of_8_dims_is_256_bytes_head_by_head() -> None:
    cache = LayerKvCache(4, 8)
    k = np.arange(32, dtype=np.float32)
    cache.append(k, np.full(32, 2.0, np.float32))
    assert (cache.seq_len, cache.pos_len, cache.base, cache.head_len(0)) == (1, 1, 0, 1)
    assert cache.head_keys(1).tolist() == [list(range(8, 16))]
    assert cache.head_values(3).tolist() == [[2.0] * 8]
    assert cache.memory_bytes() == 256


def test_a_dead_head_stores_nothing_and_reads_zeros() -> None:
    cache = LayerKvCache(2, 4)
    for _ in range(2):
        cache.append(np.ones(8), np.full(8, 2.0), [True, False])
    assert (cache.seq_len, cache.head_len(0), cache.head_len(1)) == (2, 2, 0)
    assert cache.memory_bytes() == 2 * 2 * 4 * 4
    out, probs = cache.attend(np.ones(4, np.float32), 1)
    assert out.tolist() == [0.0] * 4
    assert probs.size == 0


def test_a_head_stays_dead_or_alive_for_a_sequence() -> None:
    cache = LayerKvCache(2, 4)
    cache.append(np.ones(8), np.ones(8), [True, False])
    with pytest.raises(KvShapeError, match=r"from \[0\] to \[0, 1\]"):
        cache.append(np.ones(8), np.ones(8))
    cache.clear()
    cache.append(np.ones(8), np.ones(8))
    assert cache.head_len(1) == 1


def test_rows_keep_their_values_while_storage_grows() -> None:
    cache = LayerKvCache(2, 24)
    k, v = some_rows(1, 333, 2, 24), some_rows(2, 333, 2, 24)
    at = 0
    for rows in (1, 15, 1, 16, 100, 200):
        cache.append(k[at : at + rows], v[at : at + rows])
        at += rows
        for head in range(2):
            assert bits(cache.head_keys(head)) == bits(k[:at, head])
            assert bits(cache.head_values(head)) == bits(v[:at, head])


def test_truncation_drops_the_newest_rows() -> None:
    cache = LayerKvCache(2, 4)
    for position in range(5):
        cache.append(np.full(8, position), np.full(8, position))
    cache.truncate_last(2)
    assert (cache.seq_len, cache.pos_len, cache.head_len(0)) == (3, 3, 3)
    assert cache.head_keys(0)[2, 0] == 2.0
    cache.truncate_to(1)
    assert cache.seq_len == 1
    cache.truncate_to(7)
    assert cache.seq_len == 1
    cache.truncate_last(5)
    assert (cache.seq_len, cache.pos_len) == (0, 0)


def test_fewer_than_no_rows_are_not_taken_back() -> None:
    cache, _, _ = filled(1, 4, 3)
    with pytest.raises(KvShapeError, match="-1 rows to take back: 0 or more"):
        cache.truncate_last(-1)
    assert (cache.seq_len, cache.pos_len) == (3, 3)


def test_truncated_importance_does_not_come_back_with_new_rows() -> None:
    cache, k, v = filled(1, 4, 3)
    cache.accumulate_imp(np.array([1.0, 2.0, 3.0], np.float32))
    cache.truncate_last(1)
    cache.append(k[2:], v[2:])
    assert cache.importance.tolist() == [1.0, 2.0, 0.0]


def test_rows_in_doubt_hold_their_mass_apart_until_they_are_accepted() -> None:
    k, v, q = some_rows(1, 40, 2, 8), some_rows(2, 40, 2, 8), some_rows(3, 40, 4, 8)
    plain, speculative = LayerKvCache(2, 8), LayerKvCache(2, 8)
    plain.append(k, v)
    plain.attend_chunk(q, 0, 4, np.zeros_like(q))
    at = 0
    for accepted in (1, 5, 0, 2, 7, 3, 1, 4, 9, 8):
        rows = slice(at, at + 9)
        speculative.append(k[rows], v[rows])
        speculative.attend_chunk(q[rows], at, 4, np.zeros_like(q[rows]), settled=at)
        at += accepted
        speculative.settle(at)
        speculative.truncate_to(at)
        first = speculative.importance
        assert (first[:at] >= 0).all()
    assert at == 40
    assert bits(speculative.importance) == bits(plain.importance)


@pytest.mark.parametrize(("heads", "dim"), [(0, 4), (2, 0)])
def test_a_layer_without_heads_or_dims_is_refused(heads: int, dim: int) -> None:
    with pytest.raises(KvShapeError, match=f"{heads} KV heads of {dim} dims"):
        LayerKvCache(heads, dim)


def test_rows_of_another_width_are_refused() -> None:
    cache = LayerKvCache(2, 4)
    with pytest.raises(KvShapeError, match="2×4"):
        cache.append(np.ones(9), np.ones(8))
    with pytest.raises(KvShapeError, match="2 rows of K with 1 rows of V"):
        cache.append(np.ones(16), np.ones(8))
    with pytest.raises(KvShapeError, match="3 entries for 2"):
        cache.append(np.ones(8), np.ones(8), [True, True, False])
    assert cache.seq_len == 0


def test_abs_max_follows_append_truncate_and_rewrite_and_clear() -> None:
    cache = LayerKvCache(2, 4)

    def add(k: float, v: float) -> None:
        cache.append(np.full(8, k), np.full(8, v))

    for _ in range(4):
        add(0.5, -0.25)
    assert cache.kv_abs_max() == (0.5, 0.25)
    cache.truncate_last(2)
    add(-9.0, 3.0)
    add(0.5, 0.25)
    assert cache.kv_abs_max() == (9.0, 3.0)
    add(math.nan, 0.0)
    assert cache.kv_abs_max() == (math.inf, 3.0)
    cache.clear()
    add(1.0, -math.inf)
    assert cache.kv_abs_max() == (1.0, math.inf)
    cache.clear()
    add(1.0, 2.0)
    assert cache.kv_abs_max() == (1.0, 2.0)


def test_abs_max_takes_a_callers_maxima_only_if_they_continue_the_scanned_rows() -> None:
    cache = LayerKvCache(1, 4)
    cache.append(np.full(4, 1.0), np.full(4, 2.0))
    assert cache.kv_abs_max() == (1.0, 2.0)
    cache.append(np.full(4, 4.0), np.full(4, 1.0))
    assert cache.kv_abs_max_after(1, 2, 5.0, 1.0) == (5.0, 2.0)
    cache.append(np.full(4, 8.0), np.full(4, 1.0))
    assert cache.kv_abs_max_after(0, 3, 0.0, 0.0) == (8.0, 2.0)
    assert cache.kv_abs_max_after(3, 2, 99.0, 99.0) == (8.0, 2.0)


def test_recurrent_and_attention_bytes_make_the_total_with_scratch_and_importance() -> None:
    stack = KvCache(1, 1, 4, 16)
    layer = stack.layers[0]
    layer.linear_state = np.zeros(8, np.float32)
    layer.linear_scratch = np.zeros(4, np.float32)
    layer.append(np.zeros(4), np.ones(4))
    layer.accumulate_imp(np.ones(1, np.float32))
    assert stack.recurrent_state_bytes() == 12 * 4
    assert stack.attention_state_bytes() == 2 * 4 * 4 + 4
    assert stack.total_memory_bytes() == 48 + 36
    layer.truncate_last(0)
    assert stack.recurrent_state_bytes() == 8 * 4


def test_generation_moves_with_changes_a_row_count_cannot_reveal_and_only_with_them() -> None:
    cache, k, v = filled(1, 4, 20)
    assert LayerKvCache(1, 4).generation != LayerKvCache(1, 4).generation
    before = cache.generation
    cache.append(k, v)
    cache.truncate_last(3)
    assert cache.generation == before
    record = cache.export_wire()
    cache.clear()
    assert cache.generation != before
    other = LayerKvCache(1, 4)
    fresh = other.generation
    other.import_wire(record)
    assert other.generation not in (fresh, before, cache.generation)


def test_depth_of_the_stack_is_the_largest_next_position() -> None:
    stack = KvCache(2, 1, 4, 16)
    stack.layers[1].append(np.ones(12), np.ones(12))
    assert stack.seq_len == 3
    assert [layer.wire_layer for layer in stack.layers] == [0, 1]
    stack.truncate_to(1)
    assert stack.seq_len == 1
    stack.clear()
    assert stack.seq_len == 0
