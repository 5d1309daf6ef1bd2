"""Attention over stored rows, the plain version: against f64, and bit for bit where two ways must be one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stations.kv import KvShapeError, LayerKvCache

from .kv_rows import F32, bits, filled, softmax_attention, some_rows

MODES = ["f32", "f16"]


def group(cache: LayerKvCache, q: F32, head: int, upto: int, **options: object) -> tuple[F32, F32]:
    """`attend_group_upto` into fresh arrays."""
    out, importance = np.full(q.size, 7, np.float32), np.zeros(upto, np.float32)
    cache.attend_group_upto(q.ravel(), head, out, importance, upto=upto, **options)
    return out.reshape(q.shape), importance


@pytest.mark.parametrize("mode", MODES)
def test_a_group_equals_its_heads_one_at_a_time_bit_for_bit(mode: str) -> None:
    cache, _, _ = filled(2, 32, 70, mode)
    q = some_rows(5, 3, 2, 32)
    for head in range(2):
        out, importance = group(cache, q[:, head], head, 70)
        expected = np.zeros(70, np.float32)
        for h in range(3):
            one, probs = cache.attend(q[h, head], head)
            assert bits(out[h]) == bits(one)
            expected += probs
        assert bits(importance) == bits(expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_group_up_to_a_row_is_what_the_cache_gave_when_it_held_those_rows(mode: str) -> None:
    whole, k, v = filled(1, 24, 80, mode)
    q = some_rows(5, 2, 1, 24)[:, 0]
    growing = LayerKvCache(1, 24, mode)
    for upto in range(1, 81):
        growing.append(k[upto - 1], v[upto - 1])
        now, now_importance = group(growing, q, 0, upto)
        then, then_importance = group(whole, q, 0, upto)
        assert bits(now) == bits(then)
        assert bits(now_importance) == bits(then_importance)


def test_sinks_are_a_column_without_a_value() -> None:
    heads, per_head, dim = 2, 3, 8
    cache, k, v = filled(heads, dim, 9)
    q = some_rows(6, heads, per_head, dim, spread=3)
    sinks = np.array([[0.7, -1.3, 2.5], [0.0, -4.0, 6.0]], np.float32)
    checked = 0
    for upto, window, head in itertools.product((1, 2, 5, 9), (None, 3, 1), range(heads)):
        first = max(upto - window, 0) if window else 0
        out, importance = group(cache, q[head], head, upto, first=first, sinks=sinks[head])
        mass = np.zeros(upto)
        for h in range(per_head):
            rows = slice(first, upto)
            expected, probs = softmax_attention(
                q[head, h], k[rows, head], v[rows, head], scale=dim**-0.5, sink=float(sinks[head, h])
            )
            assert np.abs(out[h] - expected).max() < 1e-6
            mass[rows] += probs
            checked += 1
        assert np.abs(importance - mass).max() < 1e-6
        assert importance.sum() < per_head
    assert checked == 4 * 3 * heads * per_head


@pytest.mark.parametrize("sinks", [(), (0.5, -2.0)])
@pytest.mark.parametrize("window", [1, 7, 39, 40, 100])
def test_scoring_the_window_only_equals_masking_the_rest(window: int, sinks: tuple[float, ...]) -> None:
    cache, _, v = filled(1, 16, 40)
    q = some_rows(5, 2, 1, 16)[:, 0]
    first = max(40 - window, 0)
    out, importance = group(cache, q, 0, 40, first=first, scale=0.25, sinks=sinks)
    # the masked row: every score, −inf outside the window, then the same softmax and sums over all 40 rows
    for h in range(2):
        s = np.zeros(40, np.float32)
        for d in range(16):
            s = s + q[h, d] * cache.head_keys(0)[:, d]
        s = s * np.float32(0.25)
        s[:first] = -np.inf
        top = max([s.max(), *np.asarray(sinks[h : h + 1], np.float32)])
        e = np.exp(s - top)
        e[e < np.float32(1e-12)] = 0
        mass = np.exp(np.float32(sinks[h]) - top) if sinks else np.float32(0)
        acc = np.zeros(16, np.float32)
        for weight, value in zip(e, v[:, 0], strict=True):
            mass = mass + weight
            acc = acc + weight * value
        assert bits(out[h]) == bits(acc / mass)
    assert not importance[:first].any()
    assert importance[first:].sum() == pytest.approx(2, abs=1e-5) or sinks


@pytest.mark.parametrize("window", [None, 16, 200])
def test_a_chunk_matches_f64_and_keeps_the_length_of_importance(window: int | None) -> None:
    heads, dim, per_head, before, rows = 2, 32, 3, 40, 48
    cache, k, v = filled(heads, dim, before + rows)
    q = some_rows(7, rows, heads * per_head, dim)
    out = np.zeros(q.shape, np.float32)
    cache.attend_chunk(q, before, heads * per_head, out, window=window)
    mass = np.zeros(before + rows)
    for i, h in itertools.product(range(rows), range(heads * per_head)):
        upto = before + i + 1
        seen = slice(max(upto - window, 0) if window else 0, upto)
        g = h // per_head
        expected, probs = softmax_attention(q[i, h], k[seen, g], v[seen, g], scale=dim**-0.5)
        assert np.abs(out[i, h] - expected).max() < 1e-4
        mass[seen] += probs
    assert cache.importance.shape == (before + rows,)
    assert np.abs(cache.importance - mass).max() < 1e-3


@pytest.mark.parametrize("chunks", [(48,), (1,) * 48, (7, 7, 7, 7, 7, 7, 6), (16, 32)])
def test_outputs_and_importance_do_not_depend_on_the_chunks(chunks: tuple[int, ...]) -> None:
    k, v, q = some_rows(1, 48, 2, 16), some_rows(2, 48, 2, 16), some_rows(3, 48, 4, 16)
    whole = LayerKvCache(2, 16)
    whole.append(k, v)
    expected = np.zeros(q.shape, np.float32)
    whole.attend_chunk(q, 0, 4, expected)
    cache, out, at = LayerKvCache(2, 16), np.zeros(q.shape, np.float32), 0
    for rows in chunks:
        part = slice(at, at + rows)
        cache.append(k[part], v[part])
        cache.attend_chunk(q[part], at, 4, out[part])
        at += rows
    assert bits(out) == bits(expected)
    assert bits(cache.importance) == bits(whole.importance)


def test_softcap_squashes_scores_before_the_softmax_and_leaves_the_sink() -> None:
    cache, k, v = filled(1, 16, 30)
    q = some_rows(5, 1, 1, 16, spread=20)[0]
    out, _ = group(cache, q, 0, 30, softcap=2.0, sinks=[1.5])
    expected, _ = softmax_attention(q[0], k[:, 0], v[:, 0], scale=0.25, softcap=2.0, sink=1.5)
    assert np.abs(out[0] - expected).max() < 1e-6


def test_a_window_wider_than_the_cache_sees_every_row() -> None:
    cache, _, _ = filled(1, 8, 5)
    q, outs, masses = some_rows(5, 1, 2, 8).ravel(), np.zeros((2, 16), np.float32), np.zeros((2, 5), np.float32)
    for first, out, mass in zip((5 - 12, 0), outs, masses, strict=True):
        cache.attend_group(q, 0, out, mass, first=first)
    assert bits(outs[0]) == bits(outs[1])
    assert bits(masses[0]) == bits(masses[1])


def test_scale_can_be_overridden() -> None:
    cache, k, v = filled(1, 16, 30)
    q = some_rows(5, 1, 1, 16)[0]
    out, _ = group(cache, q, 0, 30, scale=3.0)
    expected, _ = softmax_attention(q[0], k[:, 0], v[:, 0], scale=3.0)
    assert np.abs(out[0] - expected).max() < 2e-6


def test_an_empty_cache_gives_zeros() -> None:
    cache = LayerKvCache(1, 8)
    out, probs = cache.attend(np.ones(8, np.float32), 0)
    assert out.tolist() == [0.0] * 8
    assert probs.size == 0
    result, _ = group(cache, np.ones((2, 8), np.float32), 0, 0, sinks=[1.0, 2.0])
    assert not result.any()


def test_rows_below_a_trillionth_of_the_largest_weight_are_skipped() -> None:
    cache = LayerKvCache(1, 1)
    for key in (0.0, 28.0, 1.0):
        cache.append(np.full(1, key), np.full(1, 1e30 if key < 28 else 3.0))
    out, probs = cache.attend(np.ones(1, np.float32), 0)
    assert probs.tolist() == [0.0, 1.0, probs[2]]
    assert 1e-12 < probs[2] < 2e-12
    assert out[0] == np.float32(3.0) + probs[2] * np.float32(1e30)


def test_sinks_must_match_the_heads() -> None:
    cache, _, _ = filled(1, 8, 2)
    with pytest.raises(KvShapeError, match="3 sink logits for 2 heads"):
        group(cache, np.ones((2, 8), np.float32), 0, 2, sinks=[1.0, 2.0, 3.0])
    with pytest.raises(KvShapeError, match="5 query heads do not divide over 2"):
        LayerKvCache(2, 8).attend_chunk(np.ones(40, np.float32), 0, 5, np.zeros(40, np.float32))
