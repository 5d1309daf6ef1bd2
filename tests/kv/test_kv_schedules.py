"""State barriers: however rows arrive, whatever was rejected in between, a layer gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from stations.kv import Born, LayerKvCache, Recent
from stations.kv.eviction import EvictionPolicy

from .fast_attention import fast_attend
from .fast_store import fast_append
from .kv_rows import F32, bits, some_rows

HEADS, PER_KV, DIM, ROWS = 2, 2, 16, 210
K, V, Q = some_rows(1, ROWS, HEADS, DIM, 2), some_rows(2, ROWS, HEADS, DIM), some_rows(3, ROWS, HEADS * PER_KV, DIM, 2)
WRONG = some_rows(4, 8, HEADS, DIM, 30)


@dataclass(frozen=True)
class Options:
    mode: str = "f32"
    recent: int | None = None
    window: int = 0
    limit: int = 0  # rows at which eviction halves the cache; 0: never
    policy: EvictionPolicy = field(default_factory=Born)


OPTIONS = [
    Options("f32"),
    Options("f16"),
    Options("q8"),
    Options("q8k"),
    Options("q8v"),
    Options("q4"),
    Options("q8", recent=20),
    Options("f32", window=24),
    Options("q8", window=24),
    Options("f32", limit=70),
    Options("f16", limit=70, policy=Recent()),
    Options("q8", limit=90),
]


class Layer:
    """One layer as a station drives it: passes end at barriers, forms change before the row at one."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cache = LayerKvCache(HEADS, DIM, options.mode, exact_recent=options.recent)
        self.outputs: list[list[int]] = []

    def room(self) -> int:
        """Evicts if that is due, then tells how many rows a pass may have."""
        limit, cache = self.options.limit, self.cache
        if limit and cache.seq_len >= limit:
            cache.settle(cache.pos_len)
            cache.evict(limit // 2, self.options.policy)
        ahead = limit - cache.seq_len if limit else ROWS
        return min(ahead, cache.room())

    def run(self, first: int, count: int, *, settled: int) -> None:
        """Rows first … of the sequence in one pass: stored, attended by both versions, masses kept."""
        rows, cache = slice(first, first + count), self.cache
        fast_append(cache, K[rows], V[rows])
        at, window = cache.seq_len - count, self.options.window
        plain = np.zeros_like(Q[rows])
        cache.attend_chunk(Q[rows], at, HEADS * PER_KV, plain, window=window or None, settled=settled)
        compiled = fast_attend(cache, Q[rows], at, window=window)
        self.outputs += [bits(np.stack(pair)) for pair in zip(plain, compiled, strict=True)]

    def trim(self) -> None:
        if self.options.window:
            self.cache.trim_window(self.options.window, 9, 8)


def played(options: Options, chunk: int, wrong: int, upto: int = ROWS) -> Layer:
    """The sequence in passes of at most `chunk` rows, each preceded by `wrong` rows that are rejected."""
    layer, at = Layer(options), 0
    while at < upto:
        room = layer.room()
        if wrong and room > wrong and layer.cache.rollback_floor <= at:
            fast_append(layer.cache, WRONG[:wrong], WRONG[:wrong])
            layer.cache.attend_chunk(np.ones((wrong, HEADS * PER_KV, DIM), np.float32), layer.cache.seq_len - wrong,
                                     HEADS * PER_KV, np.zeros((wrong, HEADS * PER_KV, DIM), np.float32),
                                     settled=at)  # fmt: skip
            layer.cache.truncate_to(at)
        count = min(chunk, room, upto - at)
        layer.run(at, count, settled=at if wrong else ROWS)
        at += count
        layer.cache.settle(at)
        layer.trim()
    return layer


def held(layer: Layer) -> tuple[list[int], list[list[int]]]:
    cache = layer.cache
    rows: list[F32] = [cache.head_keys(0), cache.head_values(1), cache.importance]
    return cache.positions.tolist(), [bits(r) for r in rows]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o.mode}-{o.recent}-w{o.window}-max{o.limit}")
def test_chunks_rejected_rows_and_resuming_from_tokens_do_not_change_a_bit(options: Options) -> None:
    expected = played(options, 1, 0)
    for chunk, wrong in ((7, 0), (64, 0), (ROWS, 0), (1, 3), (7, 3), (64, 8)):
        layer = played(options, chunk, wrong)
        assert layer.outputs == expected.outputs, (chunk, wrong)
        if not options.window:  # a tail is cut when a pass ends: its rows differ, what is seen of them does not
            assert held(layer) == held(expected)
    resumed = played(options, 64, 0, upto=150)
    while (at := resumed.cache.pos_len) < ROWS:
        resumed.run(at, min(resumed.room(), 5, ROWS - at), settled=ROWS)
        resumed.trim()
    assert resumed.outputs == expected.outputs
