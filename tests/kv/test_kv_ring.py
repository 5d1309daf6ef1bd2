"""The bounded ring: against f64, independent of chunks, undone bit for bit, and its wire record."""

from __future__ import annotations

import numpy as np
import pytest

from stations.kv import (
    KvFormError,
    KvShapeError,
    LayerKvCache,
    RecordError,
    RecordKind,
    RingRope,
    RingWeights,
    RollbackError,
)
from stations.kv.ring import UNDO_ROWS

from .kv_rows import F32, F64, bits, some_rows

HEADS, DIM, PER_KV, WINDOW, SINKS = 2, 16, 3, 24, 4
ROPE = RingRope(10_000.0 ** (-np.arange(6) / 6), scale=1.1)
WEIGHTS = RingWeights(some_rows(70, HEADS, SINKS, DIM), some_rows(71, HEADS, SINKS, DIM))
SCALE = 0.3


def ring(window: int = WINDOW) -> LayerKvCache:
    layer = LayerKvCache(HEADS, DIM)
    layer.install_bounded(window)
    return layer


def step(layer: LayerKvCache, position: int, weights: RingWeights = WEIGHTS, seed: int = 1) -> F32:
    q, k, v = row(position, seed)
    out = np.zeros(HEADS * PER_KV * DIM, np.float32)
    layer.bounded_step(q.ravel(), k.ravel(), v.ravel(), weights, ROPE, SCALE, HEADS * PER_KV, out)
    return out


def row(position: int, seed: int = 1) -> tuple[F32, F32, F32]:
    at = seed * 100_000 + position * 10
    return tuple(some_rows(at + i, 1, n, DIM)[0] for i, n in ((0, HEADS * PER_KV), (1, HEADS), (2, HEADS)))  # type: ignore[return-value]


def turned(x: F64, position: int) -> F64:
    """The usual rotation at an absolute position, half-split pairs, in f64."""
    pairs = len(ROPE.inv_freq)
    cos, sin = np.cos(position * ROPE.inv_freq), np.sin(position * ROPE.inv_freq)
    out = x.copy()
    out[..., :pairs] = (x[..., :pairs] * cos - x[..., pairs : 2 * pairs] * sin) * ROPE.scale
    out[..., pairs : 2 * pairs] = (x[..., :pairs] * sin + x[..., pairs : 2 * pairs] * cos) * ROPE.scale
    return out


def dense(upto: int, windows: tuple[int, ...]) -> F64:
    """The newest row's output from every row of the sequence, masked to each group's window, in f64."""
    out = np.zeros((HEADS * PER_KV, DIM))
    q = row(upto - 1)[0].astype(np.float64)
    for h in range(HEADS * PER_KV):
        g = h // PER_KV
        seen = range(max(upto - windows[g], 0), upto)
        scores = [q[h] @ WEIGHTS.sink_k[g, s].astype(np.float64) for s in range(SINKS)]
        values = [WEIGHTS.sink_v[g, s].astype(np.float64) for s in range(SINKS)]
        for p in seen:
            scores.append(turned(q[h], upto - 1) @ turned(row(p)[1][g].astype(np.float64), p))
            values.append(row(p)[2][g].astype(np.float64))
        e = np.exp(SCALE * (np.array(scores) - max(scores)))
        out[h] = e / e.sum() @ np.array(values)
    return out


@pytest.mark.parametrize("windows", [(WINDOW, WINDOW), (5, WINDOW), (1, 9)])
def test_a_ring_matches_dense_attention_with_rotated_keys_in_f64(windows: tuple[int, ...]) -> None:
    weights = WEIGHTS._replace(group_windows=() if windows == (WINDOW, WINDOW) else windows)
    layer = ring()
    for position in range(70):
        out = step(layer, position, weights)
        if position in (0, 1, 4, 5, 22, 23, 24, 25, 69):
            assert np.abs(out.reshape(-1, DIM) - dense(position + 1, windows)).max() < 1e-5


@pytest.mark.parametrize("chunk", [1, 32, 44, 128])
def test_ring_writes_in_chunks_of_a_prompt_equal_the_dense_suffix(chunk: int) -> None:
    whole = ring()
    expected = [step(whole, position) for position in range(300)]
    layer, outs = ring(), np.zeros((300, HEADS * PER_KV * DIM), np.float32)
    rows = [row(position) for position in range(300)]
    for start in range(0, 300, chunk):
        part = slice(start, min(start + chunk, 300))
        q, k, v = (np.stack([r[i] for r in rows[part]]) for i in range(3))
        layer.bounded_chunk(q, k, v, WEIGHTS, ROPE, SCALE, HEADS * PER_KV, outs[part])
    assert bits(outs) == bits(np.stack(expected))
    assert layer.export_wire() == whole.export_wire()
    dense_suffix = np.stack([row(p)[1] for p in range(300 - WINDOW, 300)], axis=1)
    slots = np.arange(300 - WINDOW, 300) % WINDOW
    assert bits(layer.bounded.k[:, slots]) == bits(dense_suffix)


def test_the_state_of_a_ring_does_not_grow() -> None:
    layer = ring()
    size = 2 * HEADS * WINDOW * DIM * 4 + 8
    for position in range(200):
        assert layer.memory_bytes() == size
        step(layer, position)
    assert (layer.seq_len, layer.pos_len, len(layer.bounded)) == (WINDOW, 200, WINDOW)


def test_a_ring_takes_the_same_bytes_at_128_4096_and_32768_positions() -> None:
    layer, rows = ring(), some_rows(5, 64, HEADS, DIM)
    sizes = {}
    for position in range(32_768):
        layer.bounded.insert(rows[position % 64], rows[-position % 64])
        if position + 1 in (128, 4_096, 32_768):
            sizes[position + 1] = layer.memory_bytes(), len(layer.export_wire())
    assert set(sizes.values()) == {(2 * HEADS * WINDOW * DIM * 4 + 8, 52 + 2 * HEADS * WINDOW * DIM * 4)}
    assert len(sizes) == 3


def test_rows_of_a_ring_can_be_taken_back_bit_for_bit() -> None:
    plain, speculative = ring(), ring()
    for position in range(90):
        for wrong in range(position % 7):
            step(speculative, position + wrong, seed=2)
        speculative.truncate_to(position)
        assert bits(step(speculative, position)) == bits(step(plain, position))
    assert speculative.export_wire() == plain.export_wire()


def test_a_rollback_beyond_what_a_ring_keeps_aside_is_refused_and_changes_nothing() -> None:
    layer = ring()
    for position in range(100):
        step(layer, position)
    before = layer.export_wire()
    with pytest.raises(RollbackError, match=f"{UNDO_ROWS + 1} rows of a ring that saw 100: {UNDO_ROWS} can be undone"):
        layer.truncate_last(UNDO_ROWS + 1)
    assert layer.export_wire() == before
    layer.truncate_last(UNDO_ROWS)
    assert layer.pos_len == 100 - UNDO_ROWS


def test_a_ring_snapshot_is_restored_bit_for_bit() -> None:
    layer = ring()
    for position in range(40):
        step(layer, position)
    snapshot, generation, record = layer.bounded_snapshot(), layer.generation, layer.export_wire()
    ahead = [bits(step(layer, position)) for position in range(40, 60)]
    layer.bounded_restore(snapshot)
    assert (layer.pos_len, layer.export_wire()) == (40, record)
    assert layer.generation != generation
    layer.truncate_last(3)
    assert [bits(step(layer, position)) for position in range(37, 60)][3:] == ahead


@pytest.mark.parametrize("f16", [False, True])
@pytest.mark.parametrize("rows", [0, 11, WINDOW, 61])
def test_a_ring_travels_whole(f16: bool, rows: int) -> None:
    layer = ring()
    for position in range(rows):
        k = some_rows(position, 1, HEADS, DIM)[0]
        layer.bounded.insert(np.round(k * 8) / 8, np.round(k * 4) / 4)  # exact in f16
    layer._next = layer.bounded.seen
    record = layer.export_wire(f16)
    assert record[20] == RecordKind.BOUNDED
    assert [int.from_bytes(record[at : at + 4], "little") for at in range(32, 52, 4)] == [
        HEADS, DIM, WINDOW, min(rows, WINDOW), rows % WINDOW,
    ]  # fmt: skip
    other = ring()
    other.import_wire(record)
    assert other.export_wire(f16) == record
    assert (other.pos_len, other.seq_len) == (rows, min(rows, WINDOW))
    assert bits(step(other, rows)) == bits(step(layer, rows))
    if rows:
        with pytest.raises(RollbackError, match="1 can be undone"):
            other.truncate_last(2)
    with pytest.raises(RecordError, match=f"{HEADS}×{WINDOW}×{DIM}.*{HEADS}×48×{DIM}"):
        ring(48).import_wire(record)


def test_inconsistent_ring_records_are_refused() -> None:
    layer = ring()
    for position in range(11):
        step(layer, position)
    record = layer.export_wire()
    for at, value, message in (
        (24, 12, "length 11 and head 11 do not fit position 12"),
        (44, 10, "length 10"),
        (48, 9, "head 9"),
        (52 + 11 * DIM * 4, 0x3F800000, "a ring of 11 rows has values behind them"),
    ):
        wrong = record[:at] + value.to_bytes(4, "little") + record[at + 4 :]
        with pytest.raises(RecordError, match=message):
            ring().import_wire(wrong)
    with pytest.raises(RecordError, match="only plain full layers"):
        ring().import_wire(bytes(24))


def test_a_ring_keeps_its_size_over_clear_and_refuses_what_it_cannot_do() -> None:
    layer = ring()
    step(layer, 0)
    layer.clear()
    assert (layer.pos_len, layer.seq_len, layer.bounded.window) == (0, 0, WINDOW)
    assert not layer.bounded.k.any()
    with pytest.raises(KvFormError, match="use bounded_step"):
        layer.append(np.ones(HEADS * DIM), np.ones(HEADS * DIM))
    filled = LayerKvCache(HEADS, DIM)
    filled.append(np.ones(HEADS * DIM), np.ones(HEADS * DIM))
    with pytest.raises(KvFormError, match="at position 1: a ring begins on an empty layer"):
        filled.install_bounded(WINDOW)
    with pytest.raises(KvShapeError, match="161 rows"):
        ring(161)
    with pytest.raises(KvShapeError, match="160 columns together"):
        step(ring(157), 0)
    full = LayerKvCache(HEADS, DIM)
    full.wire_kind = RecordKind.BOUNDED
    with pytest.raises(KvFormError, match="no ring"):
        full.export_wire()
    assert layer.trim_window(4, 1, 1) == 0
