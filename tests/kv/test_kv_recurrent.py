"""Recurrent layers: the gated delta rule against a plain loop, states kept for rejected rows, the linear record."""

from __future__ import annotations

import numpy as np
import pytest

from stations.kv import KvCache, KvFormError, LayerKvCache, RecordError, RecordKind, RollbackError
from stations.kv.recurrent import DeltaGeometry, DeltaRow, delta_step, initial_state

from .kv_rows import F32, bits, some_rows

GEOMETRY = DeltaGeometry(heads=2, key_dim=4, value_dim=6, taps=3)
TAPS = some_rows(50, 3, 1, GEOMETRY.channels)[:, 0]


def delta_row(position: int) -> DeltaRow:
    rng = np.random.default_rng([9, position])
    x = rng.standard_normal(GEOMETRY.channels).astype(np.float32)
    alpha, beta = rng.uniform(0.5, 1, 2).astype(np.float32), rng.uniform(0, 1, 2).astype(np.float32)
    return DeltaRow(x, alpha, beta)


def run(state: F32, first: int, rows: int) -> tuple[list[F32], F32]:
    outs, states = [], []
    for position in range(first, first + rows):
        out, state = delta_step(GEOMETRY, state, delta_row(position), TAPS)
        outs.append(out)
        states.append(state)
    return outs, np.stack(states)


def test_the_gated_delta_rule_matches_a_plain_loop_in_f64() -> None:
    outs, _ = run(initial_state(GEOMETRY), 0, 40)
    heads, key_dim, value_dim, taps = GEOMETRY
    s = np.zeros((heads, value_dim, key_dim))
    history = [np.zeros(GEOMETRY.channels)] * (taps - 1)
    for position in range(40):
        row = delta_row(position)
        history.append(row.x.astype(np.float64))
        mixed = sum(TAPS[t].astype(np.float64) * history[len(history) - taps + t] for t in range(taps))
        mixed = mixed / (1 + np.exp(-mixed))
        for h in range(heads):
            q = mixed[h * key_dim : (h + 1) * key_dim]
            k = mixed[(heads + h) * key_dim : (heads + h + 1) * key_dim]
            v = mixed[2 * heads * key_dim + h * value_dim :][:value_dim]
            q, k = (x / np.sqrt((x * x).sum() + 1e-6) for x in (q, k))
            decayed = s[h] * float(row.alpha[h])
            s[h] = decayed + float(row.beta[h]) * np.outer(v - decayed @ k, k)
            assert np.abs(s[h] @ q / np.sqrt(key_dim) - outs[position][h]).max() < 1e-5


def test_a_pass_that_may_be_rejected_keeps_the_states_before_each_of_its_rows() -> None:
    _, plain = run(initial_state(GEOMETRY), 0, 30)
    layer = LayerKvCache(1, 4)
    state, at = initial_state(GEOMETRY), 0
    for accepted in (0, 1, 3, 5, 2, 0, 5):
        _, states = run(state, at, 5)
        layer.linear_advance(states, may_be_rejected=True)
        assert layer.recurrent_bytes() == 6 * GEOMETRY.state_size * 4  # N + 1 states
        layer.truncate_to(at + accepted)
        at += accepted
        state = layer.linear_state
        expected = plain[at - 1] if at else initial_state(GEOMETRY)
        assert (layer.pos_len, layer.seq_len, layer.linear_scratch.size) == (at, 0, 0)
        assert bits(state) == bits(expected)
    _, states = run(state, at, 4)
    layer.linear_advance(states)
    with pytest.raises(RollbackError, match="rollback of 1 recurrent rows: 0 can be undone"):
        layer.truncate_last(1)
    assert layer.pos_len == at + 4


@pytest.mark.parametrize("f16", [False, True])
def test_a_linear_record_is_f32_whatever_the_flag_and_bound_to_its_identity(f16: bool) -> None:
    layer = LayerKvCache(1, 4)
    layer.wire_identity = 0xC0FFEE
    layer.linear_advance(np.array([[0.5, -0.25, 1.0, 3.3]], np.float32))
    for _ in range(8):
        layer.linear_advance(layer.linear_state[None])
    record = layer.export_wire(f16)
    assert (record[20], record[21], len(record)) == (1, f16, 32 + 12 + 16)
    assert record[32:44] == bytes.fromhex("010000000400000004000000")
    other = LayerKvCache(1, 4)
    other.wire_kind, other.wire_identity = RecordKind.LINEAR, 0xC0FFEE
    other.linear_scratch = np.ones(4, np.float32)
    other.import_wire(record)
    assert bits(other.linear_state) == bits(layer.linear_state)
    assert (other.pos_len, other.seq_len, other.linear_scratch.size) == (9, 0, 0)
    assert other.export_wire(f16) == record
    stranger = LayerKvCache(1, 4)
    stranger.wire_kind = RecordKind.LINEAR
    with pytest.raises(RecordError, match="operator identity 0000000000c0ffee in the record, 0000000000000000 here"):
        stranger.import_wire(record)
    short = LayerKvCache(1, 4)
    short.wire_identity = 0xC0FFEE
    short.linear_advance(np.ones((1, 3), np.float32))
    with pytest.raises(RecordError, match="a recurrent state of 4 values, this layer's has 3"):
        short.import_wire(record)


def test_a_layer_with_rows_does_not_become_a_recurrent_one() -> None:
    layer = LayerKvCache(1, 4)
    layer.append(np.ones(4), np.ones(4))
    with pytest.raises(KvFormError, match="a layer of 1 rows: a recurrent layer stores none"):
        layer.linear_advance(np.ones((1, 3), np.float32))
    assert (layer.wire_kind, layer.pos_len) == (RecordKind.FULL, 1)


def test_recurrent_layers_neither_call_for_eviction_nor_are_evicted() -> None:
    stack = KvCache(2, 1, 4, 3)
    for _ in range(5):
        stack.layers[0].linear_advance(np.ones((1, 4), np.float32))
    assert not stack.needs_eviction()
    stack.evict(2)
    assert (stack.layers[0].pos_len, stack.seq_len) == (5, 5)
    assert stack.recurrent_state_bytes() == 16
    stack.clear()
    assert (stack.seq_len, stack.recurrent_state_bytes()) == (0, 0)
