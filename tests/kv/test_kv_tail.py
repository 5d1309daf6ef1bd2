"""Sliding tails: rows a window no longer reads leave, and nothing that can be seen changes."""

from __future__ import annotations

import numpy as np
import pytest

from stations.kv import Born, KvCache, LayerKvCache, Recent, RollbackError

from .fast_attention import fast_attend
from .kv_rows import F32, bits, filled, some_rows


def one(position: int, heads: int, dim: int, salt: int) -> F32:
    return some_rows(position * 10 + salt, 1, heads, dim)[0]


def test_a_trim_keeps_the_bounds_the_alignment_and_the_equal_tail_dead_heads_included() -> None:
    window, slack, align, alive = 6, 2, 4, [True, False]
    full, tail = LayerKvCache(2, 8), LayerKvCache(2, 8)
    trims = 0
    for position in range(100):
        k, v = one(position, 2, 8, 1), one(position, 2, 8, 2)
        for cache in (full, tail):
            cache.append(k, v, alive)
            cache.accumulate_imp(np.ones(cache.seq_len, np.float32))
        if tail.trim_window(window, slack, align):
            trims += 1
            assert window + slack <= tail.seq_len < window + slack + align
        assert tail.seq_len <= 2 * window
        assert (tail.pos_len, tail.base % align, tail.base + tail.seq_len) == (position + 1, 0, full.seq_len)
        assert bits(tail.head_keys(0)) == bits(full.head_keys(0)[tail.base :])
        assert bits(tail.head_values(0)) == bits(full.head_values(0)[tail.base :])
        assert tail.head_len(1) == 0
        assert tail.importance.tolist() == full.importance[tail.base :].tolist()
        assert tail.positions.tolist() == list(range(tail.base, position + 1))
    assert trims > 5
    assert (tail.tail_window, full.tail_window) == (6, None)


def test_an_anchored_trim_keeps_the_window_of_a_rollback_to_the_anchor() -> None:
    window, slack, align, anchor = 6, 2, 4, 40
    full, tail = LayerKvCache(1, 4), LayerKvCache(1, 4)
    for position in range(100):
        for cache in (full, tail):
            cache.append(one(position, 1, 4, 1), one(position, 1, 4, 2))
        tail.trim_window_anchored(window, slack, align, anchor)
        assert tail.base + window <= anchor - slack + 1
    assert tail.base > 0
    tail.truncate_to(anchor - slack)
    full.truncate_to(anchor - slack)
    assert tail.seq_len >= window - 1
    assert bits(tail.head_keys(0)) == bits(full.head_keys(0)[tail.base :])
    for position in range(anchor - slack, anchor + 3 * window):
        tail.append(one(position, 1, 4, 1), one(position, 1, 4, 2))
        tail.trim_window(window, slack, align)
    assert tail.seq_len <= 2 * window


@pytest.mark.parametrize(("window", "slack", "align"), [(40, 2, 4), (37, 5, 16), (64, 64, 64)])
@pytest.mark.parametrize("mode", ["f32", "q8", "f16", "q8k"])
def test_windowed_attends_of_a_trimmed_cache_are_those_of_the_untrimmed_bit_for_bit(
    mode: str, window: int, slack: int, align: int
) -> None:
    heads, dim, per_kv = 2, 16, 2
    full, tail = LayerKvCache(heads, dim, mode), LayerKvCache(heads, dim, mode)
    k, v = some_rows(1, 400, heads, dim), some_rows(2, 400, heads, dim)
    q = some_rows(3, 400, heads * per_kv, dim)
    trims = 0
    for position in range(400):
        results = []
        for cache in (full, tail):
            cache.append(k[position], v[position])
            mass = np.zeros(cache.seq_len, np.float32)
            outs = []
            for g in range(heads):
                out = np.zeros(per_kv * dim, np.float32)
                first = max(cache.seq_len - window, 0)
                queries = q[position, g * per_kv : (g + 1) * per_kv].ravel()
                cache.attend_group(queries, g, out, mass, 0.3, first)
                outs.append(bits(out))
            results.append((outs, mass))
            cache.accumulate_imp(mass)
        assert results[0][0] == results[1][0]
        assert bits(results[0][1][tail.base :]) == bits(results[1][1])
        trims += tail.trim_window(window, slack, align) > 0
        assert bits(full.importance[tail.base :]) == bits(tail.importance)
        if position % 29 == 0 and mode in ("f32", "f16"):
            row = q[position][None]
            ours = fast_attend(tail, row, tail.seq_len - 1, window=window)
            assert bits(ours) == bits(fast_attend(full, row, position, window=window))
    assert trims > 0


def test_rows_after_a_rollback_behind_a_trim_give_the_untrimmed_answer() -> None:
    window = 10
    full, tail = LayerKvCache(1, 8), LayerKvCache(1, 8)
    position = 0
    for turn in range(60):
        for salt, rows in ((6, 3), (8 + turn, 2)):
            for _ in range(rows):
                for cache in (full, tail):
                    cache.append(one(position, 1, 8, salt), one(position, 1, 8, salt + 100))
                position += 1
            if rows == 3:
                tail.trim_window(window, 2, 4)
                full.truncate_last(2)
                tail.truncate_last(2)
                position -= 2
                assert tail.pos_len == full.seq_len
        q = one(position, 2, 8, 10)
        outs = []
        for cache in (full, tail):
            out = np.zeros(16, np.float32)
            first = max(cache.seq_len - window, 0)
            cache.attend_group(q.ravel(), 0, out, np.zeros(cache.seq_len, np.float32), 0.5, first)
            outs.append(bits(out))
        assert outs[0] == outs[1]
    assert tail.base > 0


def test_a_rollback_that_would_miss_rows_of_the_window_is_refused() -> None:
    tail, _, _ = filled(1, 4, 40)
    tail.trim_window(10, 2, 4)
    assert (tail.base, tail.rollback_floor) == (28, 37)
    with pytest.raises(RollbackError, match=r"position 36.*down to 37"):
        tail.truncate_last(4)
    tail.truncate_last(3)
    assert (tail.seq_len, tail.pos_len) == (9, 37)


def test_eviction_skips_tails_which_do_not_call_for_it_either() -> None:
    for policy in (Recent(), Born(1)):
        stack = KvCache(2, 1, 4, 30)
        stack.policy = policy
        tail, whole = stack.layers
        for position in range(25):
            for layer in stack.layers:
                layer.append(one(position, 1, 4, 1), one(position, 1, 4, 2))
            tail.trim_window(8, 2, 4)
        rows, base = tail.seq_len, tail.base
        assert base > 0
        assert not stack.needs_eviction()
        for position in range(25, 30):
            for layer in stack.layers:
                layer.append(one(position, 1, 4, 1), one(position, 1, 4, 2))
        assert stack.needs_eviction()
        generation = tail.generation
        stack.evict(10)
        assert (tail.seq_len, tail.base, tail.generation) == (rows + 5, base, generation)
        assert (whole.seq_len, stack.seq_len) == (10, 30)


def test_trims_move_the_generation_only_when_they_drop_rows_and_clear_keeps_the_window() -> None:
    cache, _, _ = filled(1, 4, 18)
    generation = cache.generation
    assert cache.trim_window(10, 2, 4) == 0
    assert cache.trim_window(0, 2, 4) == 0
    assert cache.generation == generation
    cache.append(some_rows(3, 3, 1, 4), some_rows(4, 3, 1, 4))
    assert cache.trim_window(10, 2, 4) == 8
    assert cache.generation != generation
    cache.clear()
    assert (cache.base, cache.pos_len, cache.tail_window) == (0, 0, 10)


def test_8_bit_rows_are_not_trimmed_before_their_columns_are_frozen() -> None:
    cache, _, _ = filled(1, 4, 64, "q8")
    assert cache.trim_window(10, 2, 4) == 0
    cache.append(np.ones(4), np.ones(4))
    assert cache.trim_window(10, 2, 4) == 52


@pytest.mark.parametrize(("mode", "recent"), [("q4", 32), ("q8", 20)])
def test_tails_of_coded_groups_are_cut_where_groups_begin(mode: str, recent: int) -> None:
    full, tail = (LayerKvCache(1, 16, mode, exact_recent=recent, exact_sinks=0) for _ in range(2))
    k, v, q = some_rows(1, 500, 1, 16), some_rows(2, 500, 1, 16), some_rows(3, 500, 2, 16)
    window = 64
    for position in range(500):
        outs = []
        for cache in (full, tail):
            cache.append(k[position], v[position])
            out, rows = np.zeros(32, np.float32), cache.seq_len
            cache.attend_group(q[position].ravel(), 0, out, np.zeros(rows, np.float32), first=max(rows - window, 0))
            outs.append(bits(out))
        assert outs[0] == outs[1]
        tail.trim_window(window, 8, 32)
        assert tail.seq_len <= 2 * window + 32
    assert tail.base % 32 == 0
    assert tail.base > 300


def test_abs_max_scans_the_rows_appended_after_a_trim() -> None:
    cache = LayerKvCache(1, 4)
    for _ in range(20):
        cache.append(np.full(4, 0.5), np.full(4, 0.5))
    assert cache.kv_abs_max() == (0.5, 0.5)
    dropped = cache.trim_window(8, 2, 2)
    assert dropped > 0
    cache.append(np.full(4, -7.0), np.full(4, 6.0))
    for _ in range(dropped + 3):
        cache.append(np.full(4, 0.5), np.full(4, 0.5))
    assert cache.kv_abs_max() == (7.0, 6.0)


def test_a_tail_travels_as_a_tail_and_answers_the_same_on_the_far_side() -> None:
    window = 6
    source = LayerKvCache(2, 4)
    k, v = some_rows(1, 40, 2, 4), some_rows(2, 40, 2, 4)
    source.append(k[:5], v[:5])
    plain = source.export_wire()
    assert plain[20] == 0
    assert int.from_bytes(plain[24:32], "little") == 5
    for position in range(5, 40):
        source.append(k[position], v[position])
        source.trim_window(window, 2, 4)
    for f16 in (False, True):
        record = source.export_wire(f16)
        assert record[20] == 3
        assert int.from_bytes(record[24:32], "little") == 40
        assert int.from_bytes(record[32:40], "little") == source.base
        target = LayerKvCache(2, 4)
        target.import_wire(record)
        assert (target.base, target.seq_len, target.pos_len) == (source.base, source.seq_len, 40)
        assert target.export_wire(f16) == record
        if not f16:
            q = some_rows(9, 1, 2, 4)[0]
            for head in range(2):
                assert bits(source.attend(q[head], head)[0]) == bits(target.attend(q[head], head)[0])
        target.import_wire(plain)
        assert (target.base, target.pos_len) == (0, 5)
        wrong = record[:24] + (41).to_bytes(8, "little") + record[32:]
        with pytest.raises(ValueError, match=f"position 41 is not base {source.base} . {source.seq_len} rows"):
            target.import_wire(wrong)
        assert target.pos_len == 5
        ring = LayerKvCache(2, 4)
        ring.install_bounded(8)
        with pytest.raises(ValueError, match="does not match"):
            ring.import_wire(record)
