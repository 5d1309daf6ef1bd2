"""A hypothesis machine: whatever is done to a layer cache, it holds what a plain list of rows would hold."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stations.kv import LayerKvCache

from .kv_rows import F32, bits, some_rows

HEADS, DIM = 2, 5


class LayerMachine(RuleBasedStateMachine):
    """The model is a list of (k, v, importance) rows and two numbers."""

    @initialize(dead=st.booleans())
    def start(self, dead: bool) -> None:
        self.alive = [True, not dead]
        self.cache = LayerKvCache(HEADS, DIM)
        self.rows: list[tuple[F32, F32, F32]] = []
        self.seed = 0

    @rule(count=st.integers(0, 40))
    def append(self, count: int) -> None:
        self.seed += 1
        if count:
            k, v = some_rows(self.seed, count, HEADS, DIM), some_rows(-self.seed % 2**32, count, HEADS, DIM)
            self.cache.append(k, v, self.alive)
            self.rows += [(a, b, np.float32(0)) for a, b in zip(k, v, strict=True)]

    @rule(count=st.integers(0, 50))
    def truncate_last(self, count: int) -> None:
        self.cache.truncate_last(count)
        self.rows = self.rows[: max(len(self.rows) - count, 0)]

    @rule(position=st.integers(0, 120))
    def truncate_to(self, position: int) -> None:
        self.cache.truncate_to(position)
        self.rows = self.rows[:position]

    @rule()
    def read_everything(self) -> None:
        mass = np.linspace(0, 1, max(len(self.rows), 1), dtype=np.float32)[: len(self.rows)]
        self.cache.accumulate_imp(mass)
        self.rows = [(k, v, i + m) for (k, v, i), m in zip(self.rows, mass, strict=True)]

    @rule()
    def clear(self) -> None:
        generation = self.cache.generation
        self.cache.clear()
        self.rows = []
        assert self.cache.generation != generation

    @rule()
    def travel(self) -> None:
        record = self.cache.export_wire()
        self.cache = LayerKvCache(HEADS, DIM)
        self.cache.append(np.ones(HEADS * DIM), np.ones(HEADS * DIM))
        self.cache.import_wire(record)
        assert self.cache.export_wire() == record

    @invariant()
    def holds_the_rows(self) -> None:
        if not hasattr(self, "rows"):
            return
        assert (self.cache.seq_len, self.cache.pos_len) == (len(self.rows), len(self.rows))
        assert bits(self.cache.importance) == bits(np.array([i for _, _, i in self.rows], np.float32))
        for head in range(HEADS):
            rows = self.rows if self.alive[head] else []
            assert bits(self.cache.head_keys(head)) == bits(np.array([k[head] for k, _, _ in rows], np.float32))
            assert bits(self.cache.head_values(head)) == bits(np.array([v[head] for _, v, _ in rows], np.float32))
        largest = max((float(np.abs(k[self.alive]).max()) for k, _, _ in self.rows), default=0.0)
        assert self.cache.kv_abs_max()[0] >= largest


TestLayerMachine = LayerMachine.TestCase
TestLayerMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
