"""A generated model of full, sliding, ring, recurrent and O(1) layers: whole or cut, in any passes, after a loss.

Its products are numpy's, row by row: what is tested is that five kinds of state stay in step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aeonflow.kv_options import Barrier, next_barrier
from stations.kv import LayerKvCache, RingRope, RingWeights
from stations.kv.recurrent import DeltaGeometry, DeltaRow, delta_step, initial_state

from .kv_rows import F32, bits, some_rows

HIDDEN, HEADS, KV_HEADS, DIM, VOCAB = 32, 4, 2, 8, 61
WINDOW, RING, SEAL_AT, MARK_EVERY = 11, 13, 40, 16
PROMPT, TOKENS = [(7 * i + 3) % VOCAB for i in range(34)], 40
KINDS = ("full", "sliding", "ring", "recurrent", "o1")
WHOLE, BY_LAYER, IN_THREE = (range(5),), tuple(range(i, i + 1) for i in range(5)), (range(2), range(2, 4), range(4, 5))
BARRIERS = (Barrier(SEAL_AT, MARK_EVERY),)

DELTA = DeltaGeometry(heads=4, key_dim=4, value_dim=DIM)
FREQUENCIES = 100.0 ** (-np.arange(DIM // 2) / (DIM // 2))
RING_WEIGHTS = RingWeights(some_rows(1, KV_HEADS, 2, DIM), some_rows(2, KV_HEADS, 2, DIM), (RING, 5))
EMBEDDING = some_rows(3, VOCAB, 1, HIDDEN)[:, 0]


def weight(layer: int, name: str, columns: int) -> F32:
    rng = np.random.default_rng([layer, len(name), *name.encode()])
    return rng.standard_normal((HIDDEN, columns)).astype(np.float32) * np.float32(HIDDEN**-0.5 * 2)


def turned(x: F32, position: int) -> F32:
    """x [heads, dim] rotated to a position."""
    cos, sin = (f(position * FREQUENCIES).astype(np.float32) for f in (np.cos, np.sin))
    low, high = x[:, : DIM // 2], x[:, DIM // 2 :]
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=1)


class Layer:
    """One layer and its state."""

    def __init__(self, index: int) -> None:
        self.kind, self.cache = KINDS[index], LayerKvCache(KV_HEADS, DIM)
        sizes = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM, "x": DELTA.channels, "gates": 8}
        self.weights = {name: weight(index, name, size) for name, size in sizes.items()}
        self.out = weight(index, "out", HIDDEN)
        self.taps = some_rows(9, DELTA.taps, 1, DELTA.channels)[:, 0]
        self.begin()

    def begin(self) -> None:
        if self.kind == "ring":
            self.cache.install_bounded(RING)
        elif self.kind == "o1":
            self.cache.o1_begin(4, 8, 2, seal_at=SEAL_AT)

    def clear(self) -> None:
        self.cache.clear()
        if self.kind == "o1":
            self.begin()

    def run(self, x: F32, settled: int, *, may_be_rejected: bool) -> F32:
        """x [rows, hidden] of the next rows. Rows below `settled` are final."""
        first = self.cache.pos_len
        if self.kind == "sliding":
            self.cache.trim_window_anchored(WINDOW, 0, 1, settled)
        if self.kind == "o1" and first >= SEAL_AT and (first - SEAL_AT) % MARK_EVERY == 0:
            assert settled == first
            assert self.cache.o1_seal(HEADS)
            self.cache.o1_mark()
        if self.kind == "recurrent":
            read = self._recurrent(x, may_be_rejected)
        else:
            read = np.stack([self._attended(row, first + i) for i, row in enumerate(x)])
        return x + np.tanh(np.stack([row @ self.out for row in read]))

    def _attended(self, x: F32, position: int) -> F32:
        q, k, v = ((x @ self.weights[name]).reshape(-1, DIM) for name in "qkv")
        out = np.zeros(HEADS * DIM, np.float32)
        if self.kind == "ring":
            rope = RingRope(FREQUENCIES)
            self.cache.bounded_step(q, k, v, RING_WEIGHTS, rope, DIM**-0.5, HEADS, out)
            return out
        q, k = turned(q, position), turned(k, position)
        if self.cache.o1_sealed:
            return self.cache.o1_step(q, k, v, HEADS)
        self.cache.o1_push_q(q.ravel())
        self.cache.append(k, v)
        window = WINDOW if self.kind == "sliding" else self.cache.seq_len
        for head, part in enumerate(np.split(out, KV_HEADS)):
            group = q[head * 2 : head * 2 + 2]
            self.cache.attend_group(group, head, part, np.zeros(0, np.float32), first=self.cache.seq_len - window)
        return out

    def _recurrent(self, x: F32, may_be_rejected: bool) -> F32:
        state = self.cache.linear_state if self.cache.linear_state.size else initial_state(DELTA)
        outs, states = [], []
        for row in x:
            gates = 1 / (1 + np.exp(-(row @ self.weights["gates"])))
            out, state = delta_step(DELTA, state, DeltaRow(row @ self.weights["x"], gates[:4], gates[4:]), self.taps)
            outs.append(out.ravel())
            states.append(state)
        self.cache.linear_advance(np.stack(states), may_be_rejected=may_be_rejected)
        return np.stack(outs)


class Model:
    """Its layers in parts, each of which knows nothing of the others but the rows that come as bytes."""

    def __init__(self, plan: tuple[range, ...]) -> None:
        self.plan = plan
        self.parts = [[Layer(i) for i in part] for part in plan]

    def run(self, ids: list[int], settled: int, *, may_be_rejected: bool = False) -> F32:
        """Logits [rows, vocabulary] of the next rows."""
        x = EMBEDDING[ids]
        for part in self.parts:
            x = np.frombuffer(x.tobytes(), np.float32).reshape(-1, HIDDEN)
            for layer in part:
                x = layer.run(x, settled, may_be_rejected=may_be_rejected)
        return np.stack([EMBEDDING @ row for row in x])

    def truncate(self, position: int) -> None:
        for layer in self.layers():
            layer.cache.truncate_to(position)

    def layers(self) -> list[Layer]:
        return [layer for part in self.parts for layer in part]

    def lose(self, part: int) -> None:
        """A part begins anew, so all rows come again: the others forget theirs."""
        self.parts[part] = [Layer(i) for i in self.plan[part]]
        for layer in self.layers():
            layer.clear()


def feed(model: Model, ids: list[int], first: int, chunk: int, wrong: int) -> F32:
    """Rows from `first` on in passes that end at barriers, each after a pass of `wrong` rows that are taken back."""
    logits = np.zeros((0, VOCAB), np.float32)
    while first < len(ids):
        barrier = next_barrier(BARRIERS, first)
        assert barrier is not None
        if wrong and first + wrong <= barrier:
            model.run([(first + 5 * i) % VOCAB for i in range(wrong)], first, may_be_rejected=True)
            model.truncate(first)
        end = min(first + chunk, barrier, len(ids))
        logits = model.run(ids[first:end], first)
        first = end
    return logits


def generated(model: Model, chunk: int, wrong: int = 0, lost: Callable[[Model], None] | None = None) -> list[int]:
    """Tokens, then the bits of the last logits."""
    ids, first, logits = list(PROMPT), 0, np.zeros((0, VOCAB), np.float32)
    for count in range(TOKENS):
        if lost is not None and count == TOKENS // 2:
            lost(model)
            first = 0
        logits = feed(model, ids, first, chunk, wrong)
        first = len(ids)
        ids.append(int(logits[-1].argmax()))
    return [*ids[len(PROMPT) :], *bits(logits[-1])]


@pytest.fixture(scope="module")
def expected() -> list[int]:
    found = generated(Model(WHOLE), 1)
    assert len(set(found[:TOKENS])) > 5, "these tokens would hide a loss"
    return found


@pytest.mark.parametrize("plan", [WHOLE, IN_THREE, BY_LAYER])
@pytest.mark.parametrize(("chunk", "wrong"), [(7, 0), (100, 0), (7, 3)])
def test_layers_of_five_kinds_give_the_same_however_they_are_cut_and_fed(
    plan: tuple[range, ...], chunk: int, wrong: int, expected: list[int]
) -> None:
    assert generated(Model(plan), chunk, wrong) == expected


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_that_is_lost_is_computed_anew_from_tokens(part: int, expected: list[int]) -> None:
    assert generated(Model(IN_THREE), 64, 2, lambda model: model.lose(part)) == expected


def test_every_kind_of_state_takes_part(expected: list[int]) -> None:
    model = Model(WHOLE)
    generated(model, 100)
    depth = len(PROMPT) + TOKENS - 1
    full, sliding, ring, recurrent, o1 = (layer.cache for layer in model.layers())
    assert {layer.cache.pos_len for layer in model.layers()} == {depth}
    assert (full.seq_len, ring.seq_len, recurrent.seq_len, o1.seq_len) == (depth, RING, 0, 0)
    assert sliding.seq_len <= 2 * WINDOW + 1
    assert o1.o1_sealed
    for index in range(5):
        kinds = Model(WHOLE)
        kinds.layers()[index].out[:] = 0
        assert generated(kinds, 100) != expected
