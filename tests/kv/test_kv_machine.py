"""A hypothesis machine: whatever is done to a layer cache, it holds what a plain list of rows would hold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stations.kv import Born, KvFormError, LayerKvCache, Recent, RollbackError

from .kv_rows import F32, bits, some_rows

HEADS, DIM = 2, 5
WINDOW, SLACK, ALIGN = 9, 3, 4


class Row(NamedTuple):
    position: int
    k: F32
    v: F32
    mass: np.float32


class LayerMachine(RuleBasedStateMachine):
    """The model: a list of rows, the next position, and the position below which nothing can be restored."""

    @initialize(dead=st.booleans(), slides=st.booleans(), mode=st.sampled_from(["f32", "f16"]))
    def start(self, dead: bool, slides: bool, mode: str) -> None:
        self.alive, self.slides, self.mode = [True, not dead], slides, mode
        self.cache = LayerKvCache(HEADS, DIM, mode)
        self.rows: list[Row] = []
        self.next, self.floor, self.seed = 0, 0, 0

    @rule(count=st.integers(1, 30))
    def append(self, count: int) -> None:
        self.seed += 1
        k, v = some_rows(self.seed, count, HEADS, DIM), some_rows(self.seed + 10**6, count, HEADS, DIM)
        self.cache.append(k, v, self.alive)
        if self.mode == "f16":
            k, v = k.astype(np.float16).astype(np.float32), v.astype(np.float16).astype(np.float32)
        self.rows += [Row(self.next + i, k[i], v[i], np.float32(0)) for i in range(count)]
        self.next += count

    @rule(back=st.integers(0, 25))
    def truncate(self, back: int) -> None:
        target = max(self.next - back, 0)
        if target < min(self.lowest, self.next):
            with pytest.raises(RollbackError):
                self.cache.truncate_to(target)
            return
        self.cache.truncate_to(target)
        self.rows = [row for row in self.rows if row.position < target]
        self.next = target

    @property
    def lowest(self) -> int:
        """A sliding layer must keep the rows that the next query's window reads."""
        first = self.rows[0].position if self.rows else self.next
        return max(self.floor, first + WINDOW - 1 if self.cache.tail_window and first else 0)

    @rule()
    def read_everything(self) -> None:
        mass = np.linspace(0, 1, max(len(self.rows), 1), dtype=np.float32)[: len(self.rows)]
        self.cache.accumulate_imp(mass)
        self.rows = [row._replace(mass=row.mass + m) for row, m in zip(self.rows, mass, strict=True)]

    @precondition(lambda self: self.slides)
    @rule()
    def trim(self) -> None:
        generation, before = self.cache.generation, len(self.rows)
        dropped = self.cache.trim_window(WINDOW, SLACK, ALIGN)
        if before > 2 * WINDOW:
            first = max(self.next - WINDOW - SLACK, 0) // ALIGN * ALIGN
            self.rows = [row for row in self.rows if row.position >= first]
        assert dropped == before - len(self.rows)
        assert (self.cache.generation != generation) == (dropped > 0)

    @precondition(lambda self: not self.slides)
    @rule(keep=st.integers(1, 40), policy=st.sampled_from([Recent(), Born(0), Born(3)]))
    def evict(self, keep: int, policy: Recent | Born) -> None:
        dropped = self.cache.evict(keep, policy)
        if len(self.rows) <= keep:
            assert dropped == 0
            return
        if isinstance(policy, Recent):
            chosen = self.rows[-keep:]
        else:
            sinks = self.rows[: min(policy.sink, keep)]
            newest = self.rows[len(self.rows) - min(max(keep // 2, 1), keep - len(sinks)) :]
            rest = sorted(self.rows[len(sinks) : len(self.rows) - len(newest)], key=lambda row: -row.mass)
            heaviest = rest[: keep - len(sinks) - len(newest)]
            chosen = sorted([*sinks, *newest, *heaviest], key=lambda row: row.position)
        assert dropped == len(self.rows) - len(chosen)
        self.rows, self.floor = chosen, self.next

    @rule()
    def clear(self) -> None:
        generation = self.cache.generation
        self.cache.clear()
        self.rows, self.next, self.floor = [], 0, 0
        assert self.cache.generation != generation

    @rule()
    def travel(self) -> None:
        f16 = self.mode == "f16"
        first = self.rows[0].position if self.rows else self.next
        if self.next - first != len(self.rows):
            with pytest.raises(KvFormError, match="evicted"):
                self.cache.export_wire(f16)
            return
        record = self.cache.export_wire(f16)
        assert record[20] == (3 if first else 0)
        self.cache = LayerKvCache(HEADS, DIM, self.mode)
        self.cache.append(np.ones(HEADS * DIM), np.ones(HEADS * DIM))
        self.cache.import_wire(record)
        assert self.cache.export_wire(f16) == record
        self.floor = first

    @invariant()
    def holds_the_rows(self) -> None:
        if not hasattr(self, "rows"):
            return
        cache = self.cache
        assert (cache.seq_len, cache.pos_len) == (len(self.rows), self.next)
        assert cache.positions.tolist() == [row.position for row in self.rows]
        assert bits(cache.importance) == bits(np.array([row.mass for row in self.rows], np.float32))
        for head in range(HEADS):
            rows = self.rows if self.alive[head] else []
            assert bits(cache.head_keys(head)) == bits(np.array([row.k[head] for row in rows], np.float32))
            assert bits(cache.head_values(head)) == bits(np.array([row.v[head] for row in rows], np.float32))
        largest = max((float(np.abs(row.k[self.alive]).max()) for row in self.rows), default=0.0)
        assert cache.kv_abs_max()[0] >= largest


TestLayerMachine = LayerMachine.TestCase
TestLayerMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
