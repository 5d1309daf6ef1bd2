"""The O(1) overlay: its formulas in f64, the boundary, the guard, failures, bytes, snapshots."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stations.kv import Born, KvCache, KvFormError, LayerKvCache, OverlayShape, Recent, Rect, RollbackError
from stations.kv.nystrom import core_inverse, landmark_means
from stations.kv.overlay_group import GroupRows, OverlayGroup, overlay_wins

from .kv_rows import F32, F64, bits, softmax_attention, some_rows

DIM, HEADS = 16, 3
SHAPE = OverlayShape(landmarks=8, window=20, sink=4)


def prompt(rows: int, spread: float = 1.0, dim: int = DIM) -> GroupRows:
    q = some_rows(1, rows, HEADS, dim, spread).swapaxes(0, 1)
    return GroupRows(
        np.ascontiguousarray(q), some_rows(2, rows, 1, dim, spread)[:, 0], some_rows(3, rows, 1, dim)[:, 0]
    )


def formula(all_rows: GroupRows, shape: OverlayShape, sealed: int, row: int, h: int, scale: float) -> F64:
    """Output of head h at `row` by the formulas as written, in f64, sealed after `sealed` rows."""
    q, k, v = (x.astype(np.float64) for x in (all_rows.q[h], all_rows.k, all_rows.v))
    m = shape.landmarks_at(sealed)
    edges = [i * sealed // m for i in range(m + 1)]
    q_mark = np.array([q[a:b].mean(axis=0) for a, b in pairwise(edges)])
    k_mark = np.array([k[a:b].mean(axis=0) for a, b in pairwise(edges)])
    a = np.exp(q_mark @ k_mark.T * scale)
    gram = a.T @ a
    inverse = np.linalg.inv(gram + 1e-6 * np.trace(gram) / m * np.eye(m)) @ a.T
    far = range(shape.sink, row + 1 - shape.window)
    near = [*range(shape.sink), *range(row + 1 - shape.window, row + 1)]
    weights = np.exp(q_mark @ k[list(far)].T * scale)
    z, t = weights.sum(axis=1), weights @ v[list(far)]
    u = np.exp(q[row] @ k_mark.T * scale) @ inverse
    if shape.rect is Rect.FM:
        u = np.maximum(u, 0)
    elif u @ z < 0:
        u = 0 * u
    e = np.exp(k[near] @ q[row] * scale)
    return (e @ v[near] + u @ t) / (e.sum() + u @ z)


@pytest.mark.parametrize("rect", [Rect.AGGREGATE, Rect.FM])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_a_sealed_group_follows_the_formulas(rect: Rect, spread: float) -> None:
    shape, rows = SHAPE._replace(rect=rect), prompt(150, spread)
    group = OverlayGroup(shape, rows.upto(100), 0.25, np.ones(HEADS, bool))
    for row in range(100, 150):
        assert group.far_len + shape.window + shape.sink == group.rows
        out = group.step(rows.q[:, row], rows.k[row], rows.v[row])
        for h in range(HEADS):
            expected = formula(rows, shape, 100, row, h, 0.25)
            assert np.abs(out[h] - expected).max() < 2e-3 * max(np.abs(expected).max(), 1)


def test_landmarks_are_means_over_equal_shares_of_the_prompt() -> None:
    rows = np.arange(10, dtype=np.float32)[:, None]
    assert landmark_means(rows, 4)[:, 0].tolist() == [0.5, 3.0, 5.5, 8.0]
    assert [SHAPE.landmarks_at(t) for t in (0, 31, 40, 63, 64, 10_000)] == [4, 4, 5, 7, 8, 8]


def test_the_core_inverse_inverts_and_survives_equal_landmarks() -> None:
    q, k = some_rows(1, 1, 6, 8, 2)[0], some_rows(2, 1, 6, 8, 2)[0]
    inverse, level = core_inverse(q, k, 0.5)
    a = np.exp(q.astype(np.float64) @ k.T.astype(np.float64) * 0.5 - level)
    assert np.abs(inverse @ a - np.eye(6)).max() < 0.05
    same, _ = core_inverse(np.ones((6, 8), np.float32), np.ones((6, 8), np.float32), 200.0)
    assert np.isfinite(same).all()


def test_fm_outputs_stay_in_the_hull_of_the_values() -> None:
    shape, rows = SHAPE._replace(rect=Rect.FM), prompt(220, spread=3)
    group = OverlayGroup(shape, rows.upto(100), 0.5, np.ones(HEADS, bool))
    for row in range(100, 220):
        out = group.step(rows.q[:, row], rows.k[row], rows.v[row])
        low, high = rows.v[: row + 1].min(axis=0), rows.v[: row + 1].max(axis=0)
        assert (out >= low - 1e-5).all()
        assert (out <= high + 1e-5).all()


def test_a_group_too_short_to_seal_is_the_plain_softmax() -> None:
    rows = prompt(120)
    group = OverlayGroup(SHAPE, rows.upto(SHAPE.seal_floor - 1), 0.25, np.ones(HEADS, bool))
    assert group.exact_only
    for row in range(SHAPE.seal_floor - 1, 120):
        out = group.step(rows.q[:, row], rows.k[row], rows.v[row])
        for h in range(HEADS):
            expected, _ = softmax_attention(rows.q[h, row], rows.k[: row + 1], rows.v[: row + 1], scale=0.25)
            assert np.abs(out[h] - expected).max() < 2e-6


def test_bytes_are_those_of_the_size_formula_and_constant() -> None:
    shape, dim, per_kv, rows = OverlayShape(32, 128, 4), 128, 2, 400
    q = np.ones((per_kv, rows, dim), np.float32)
    k = some_rows(2, rows, 1, dim)[:, 0]
    group = OverlayGroup(shape, GroupRows(q, k, k), 0.1, np.ones(per_kv, bool))
    floats = 2 * 128 * dim + 2 * 4 * dim + 32 * dim + per_kv * (2 * 32 * dim + 2 * 32 + 32 * 32 + 4 + 128 + 3 * 32)
    assert group.memory_bytes == 4 * floats
    assert 226_000 < group.memory_bytes < 229_000
    for row in range(50):
        group.step(q[:, row], k[row], k[row])
        assert group.memory_bytes == 4 * floats


def test_heads_without_a_far_field_give_its_bytes_to_the_window() -> None:
    rows = prompt(100)
    both = OverlayGroup(SHAPE, rows, 0.25, np.ones(HEADS, bool))
    for uses in ([True, False, True], [False, False, False]):
        group = OverlayGroup(SHAPE, rows, 0.25, np.array(uses))
        assert 0.93 < group.memory_bytes / both.memory_bytes < 1.07
        assert group.window > both.window
    plain = OverlayGroup(SHAPE, rows, 0.25, np.zeros(HEADS, bool))
    assert plain.window == SHAPE.window_of_equal_bytes(100, DIM, HEADS)
    mixed = OverlayGroup(SHAPE, rows, 0.25, np.array([True, False, False]))
    whole = prompt(160)
    for row in range(100, 160):
        q, k, v = whole.q[:, row], whole.k[row], whole.v[row]
        outs = [group.step(q, k, v) for group in (mixed, both)]
        assert bits(outs[0][0]) == bits(outs[1][0])
        seen = [*range(4), *range(max(row + 1 - mixed.window, 4), row + 1)]
        expected, _ = softmax_attention(q[1], whole.k[seen], whole.v[seen], scale=0.25)
        assert np.abs(outs[0][1] - expected).max() < 2e-6


def test_the_guard_drops_the_far_field_where_a_window_of_equal_bytes_is_better() -> None:
    rng = np.random.default_rng(0)
    noise = GroupRows(*(rng.standard_normal(s).astype(np.float32) for s in ((2, 400, 32), (400, 32), (400, 32))))
    assert overlay_wins(OverlayShape(16, 32, 4), noise, 2.0).tolist() == [False, False]
    flat = noise._replace(q=noise.q * np.float32(0.05))
    assert overlay_wins(OverlayShape(16, 32, 4), flat, 0.2).tolist() == [True, True]
    assert overlay_wins(OverlayShape(16, 32, 4), flat.upto(60), 0.2).tolist() == [False, False]


def collect(layer: LayerKvCache, rows: int, heads: int = 2, first: int = 0) -> None:
    dim = layer.head_dim
    for position in range(first, first + rows):
        layer.o1_push_q(some_rows(position, 1, heads, dim)[0].ravel())
        layer.append(some_rows(position + 500, 1, 1, dim), some_rows(position + 900, 1, 1, dim))


def test_a_batch_that_ends_on_the_boundary_is_whole_and_one_more_is_split() -> None:
    layer = LayerKvCache(1, 4)
    layer.o1_begin(4, 8, 2, seal_at=19)
    collect(layer, 16)
    assert [layer.o1_boundary_crossed_by(n) for n in (1, 3, 4)] == [False, False, True]
    assert layer.room() == 3
    with pytest.raises(KvFormError, match="4 rows at 16"):
        layer.reserve(4)
    collect(layer, 3, first=16)
    assert layer.o1_boundary_crossed_by(1)
    assert not LayerKvCache(1, 4).o1_boundary_crossed_by(5)


@pytest.mark.parametrize("policy", [Recent(), Born(2)])
def test_a_collecting_layer_is_immune_to_eviction_seals_at_19_and_frees_its_rows(policy: Recent | Born) -> None:
    stack = KvCache(1, 1, 4, 6)
    stack.policy = policy
    layer = stack.layers[0]
    layer.o1_begin(4, 8, 2, seal_at=10)
    for position in range(19):
        collect(layer, 1, first=position)
        if position < 18:
            assert not stack.needs_eviction()
            stack.evict(3)
            assert not layer.o1_seal(2)
    assert (layer.seq_len, layer.head_len(0)) == (19, 19)
    collecting = layer.memory_bytes()
    assert collecting == 19 * (2 * 4 + 8) * 4
    generation = layer.generation
    assert layer.o1_seal(2)
    assert (layer.o1_sealed, layer.seq_len, layer.pos_len, layer.head_len(0)) == (True, 0, 19, 0)
    assert layer.generation != generation
    assert layer.rows_bytes() == 0
    assert layer.o1_report is not None
    assert layer.o1_report.heads == 2
    assert layer.o1_seal(2)
    sealed = layer.memory_bytes()
    for position in range(19, 60):
        layer.o1_step(np.ones(8), np.ones(4), np.ones(4), 2)
        assert (layer.memory_bytes(), layer.pos_len) == (sealed, position + 1)
        assert not stack.needs_eviction()
    assert layer.trim_window(4, 1, 1) == 0


def test_a_sealed_layer_answers_for_every_group_and_head() -> None:
    layer = LayerKvCache(2, DIM)
    layer.o1_begin(8, 20, 4, guarded=False)
    q, k, v = some_rows(1, 140, 4, DIM), some_rows(2, 140, 2, DIM), some_rows(3, 140, 2, DIM)
    layer.o1_push_q(q[:100].reshape(100, -1))
    layer.append(k[:100], v[:100])
    assert layer.o1_seal(4)
    for row in range(100, 140):
        out = layer.o1_step(q[row].ravel(), k[row].ravel(), v[row].ravel(), 4).reshape(4, DIM)
        for h in range(4):
            group = GroupRows(q[:, h][None], k[:, h // 2], v[:, h // 2])
            expected = formula(group, SHAPE, 100, row, 0, DIM**-0.5)
            assert np.abs(out[h] - expected).max() < 2e-3


def steps(layer: LayerKvCache, first: int, count: int) -> list[list[int]]:
    """The outputs of so many rows, each made from its number."""
    rows = [some_rows(position, 1, 4, 8)[0] for position in range(first, first + count)]
    return [bits(layer.o1_step(r[:2].ravel(), r[2], r[3], 2)) for r in rows]


def test_an_o1_snapshot_is_restored_bit_for_bit() -> None:
    layer = LayerKvCache(1, 8)
    layer.o1_begin(4, 8, 2, guarded=False)
    collect(layer, 60)
    assert layer.o1_seal(2)
    snapshot = layer.o1_snapshot()
    first = steps(layer, 0, 10)
    for _ in range(2):
        layer.o1_restore(snapshot)
        assert layer.pos_len == 60
        assert steps(layer, 0, 10) == first
    with pytest.raises(KvFormError, match="use o1_step"):
        layer.append(np.ones(8), np.ones(8))
    with pytest.raises(KvFormError, match=r"O\(1\) overlay has no wire record"):
        layer.export_wire()


@pytest.mark.parametrize("guarded", [False, True], ids=["far field", "window only"])
def test_rows_since_the_last_mark_are_taken_back_bit_for_bit_and_no_others(guarded: bool) -> None:
    layer, plain = LayerKvCache(1, 8), LayerKvCache(1, 8)
    for one in (layer, plain):
        one.o1_begin(4, 8, 2, guarded=guarded)
        collect(one, 60)
        assert one.o1_seal(2)
    expected = steps(plain, 0, 120)
    assert steps(layer, 0, 30) == expected[:30]
    layer.o1_mark()
    for wrong in (1, 7, 64, 0):
        assert steps(layer, 30, 64 - wrong) == expected[30 : 94 - wrong]
        steps(layer, 1000, wrong)
        layer.truncate_last(64)
        assert layer.pos_len == 90
    with pytest.raises(RollbackError, match="rollback of 1 rows of a layer sealed"):
        layer.truncate_last(1)
    assert steps(layer, 30, 50) == expected[30:80]
    layer.truncate_last(20)
    assert steps(layer, 60, 60) == expected[60:]
    with pytest.raises(RollbackError, match="rollback of 3 rows of a layer sealed"):
        layer.truncate_last(3)  # more rows since the mark than the ring holds beside those that are read


def test_rejected_rows_leave_no_trace_in_the_query_trace() -> None:
    plain, speculative = LayerKvCache(1, 8), LayerKvCache(1, 8)
    for layer in (plain, speculative):
        layer.o1_begin(4, 8, 2, seal_at=60, stride=3, guarded=False)
    collect(plain, 60)
    for position in range(60):
        wrong = min(position % 5, 60 - position)
        collect(speculative, wrong, first=1000)
        speculative.truncate_to(position)
        collect(speculative, 1, first=position)
    assert plain.o1_seal(2)
    assert speculative.o1_seal(2)
    for position in range(70, 80):
        r = some_rows(position, 1, 4, 8)[0]
        outs = [layer.o1_step(r[:2].ravel(), r[2], r[3], 2) for layer in (plain, speculative)]
        assert bits(outs[0]) == bits(outs[1])


@pytest.mark.parametrize(
    ("mode", "heads", "m", "w", "pushed", "alive", "reason"),
    [
        ("q8", 2, 4, 8, 30, None, "needs F32 rows; the cache is q8"),
        ("f32", 3, 4, 8, 30, None, "3 query heads on 2 KV heads"),
        ("f32", 2, 3, 8, 30, None, "3 landmarks"),
        ("f32", 2, 4, 0, 30, None, "window 0"),
        ("f32", 2, 4, 8, 29, None, "the query trace has 29 rows"),
        ("f32", 2, 4, 8, 30, [True, False], "some heads are dead"),
    ],
)
def test_an_impossible_seal_empties_the_layer_and_latches_its_reason_until_clear(
    mode: str, heads: int, m: int, w: int, pushed: int, alive: list[bool] | None, reason: str
) -> None:
    layer = LayerKvCache(2, 4, mode)
    layer.o1_begin(m, w, 2)
    rows: F32 = some_rows(1, 30, 2, 4)
    layer.append(rows, rows, alive)
    layer.o1_push_q(np.ones((pushed, heads * 4), np.float32))
    assert not layer.o1_seal(heads)
    assert layer.o1_error is not None
    assert reason in layer.o1_error
    assert (layer.seq_len, layer.pos_len, layer.memory_bytes()) == (0, 0, 0)
    layer.append(rows, rows)
    assert (layer.seq_len, layer.o1_error is None) == (0, False)
    assert not layer.o1_seal(heads)
    layer.clear()
    layer.append(rows, rows)
    assert (layer.seq_len, layer.o1_error) == (30, None)


def test_a_sealed_layer_opens_again_from_kept_rows() -> None:
    q, k, v = some_rows(1, 90, 2, 8), some_rows(2, 90, 1, 8), some_rows(3, 90, 1, 8)
    layers = [LayerKvCache(1, 8) for _ in range(2)]
    for layer, rows in zip(layers, (60, 90), strict=True):
        layer.o1_begin(4, 8, 2, guarded=False)
        layer.o1_push_q(q[:rows].reshape(rows, -1))
        layer.append(k[:rows], v[:rows])
        assert not layer.o1_recollect(k, v, q, 1, 90)
        assert layer.o1_seal(2)
    reopened, plain = layers
    generation = reopened.generation
    assert reopened.o1_recollect(k, v, q, 1, 90)
    assert reopened.generation != generation
    assert (reopened.o1_collecting, reopened.seq_len, reopened.pos_len) == (True, 90, 90)
    assert reopened.o1_seal(2)
    step = (np.ones(16, np.float32), np.ones(8, np.float32), np.ones(8, np.float32))
    assert bits(reopened.o1_step(*step, 2)) == bits(plain.o1_step(*step, 2))
    filled = LayerKvCache(1, 8)
    filled.append(k, v)
    with pytest.raises(KvFormError, match="begins on an empty layer"):
        filled.o1_begin(4, 8, 2)
