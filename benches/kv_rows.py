"""A decoded row at depth over made-up rows: O(1) layers beside the exact cache, rings by position (METHOD.md)."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from aeonflow.kv_options import is_barrier, next_barrier
from host.bench.kv_way import kv_way
from host.bench.measure import machine, spread
from stations.core.kv_layout import KvLayout
from stations.kernels import make_backend
from stations.kernels.base import Backend, Span
from stations.kv import LayerKvCache, RingRope, RingWeights
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles
from stations.models.store import cache_folder

TURN_ROWS = 4  # of one way before it is the next one's turn: other work on the machine hits all alike
MAX_ROWS = 512  # of a pass
RING_HEADS, RING_PER_KV, RING_DIM, RING_WINDOW, RING_SINKS = 8, 2, 64, 128, 4


class Filled:
    """The caches of a model at `depth`, whose rows are made up, and the next rows computed on them."""

    def __init__(self, backend: Backend, way: str, depth: int) -> None:
        card = backend.card
        self._backend, self._layers, self._hidden_size = backend, range(card.num_layers), card.hidden_size
        self._layout = KvLayout(card, kv_way(way, depth))
        self._caches = [self._layout.new_cache(layer, depth + 1024) for layer in self._layers]
        self._barriers = self._layout.barriers(self._layers)
        self._rng = np.random.default_rng(depth)
        self._at = 0
        self.row_s: list[float] = []
        if not any(cache.has_overlay for cache in self._caches):
            for cache in self._caches:
                cache.append(*self._rng.standard_normal((2, depth, card.num_kv_heads, card.head_dim), np.float32))
            self._at = depth
        while self._at < depth:  # O(1) layers take rows in their course only
            self._pass(min((next_barrier(self._barriers, self._at) or depth) - self._at, MAX_ROWS, depth - self._at))

    def _pass(self, rows: int) -> float:
        """So many rows through all layers; seconds of processor time."""
        if is_barrier(self._barriers, self._at):
            for cache in self._caches:
                self._layout.change_form(cache, self._at)
        for cache in self._caches:
            cache.settle(self._at)
        x = self._rng.standard_normal((rows, self._hidden_size), np.float32)
        spans = [[Span(cache, self._at, rows)] for cache in self._caches]
        start = time.thread_time()
        self._backend.block(0, len(self._layers) - 1, x, spans)
        self._at += rows
        return time.thread_time() - start

    def row(self) -> None:
        self.row_s.append(self._pass(1))

    @property
    def kv_bytes(self) -> int:
        return sum(cache.memory_bytes() for cache in self._caches)


def decoded(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every way at every depth, in turns; `to_first`: the rate over the first way's at that depth."""
    folder = ModelFolder.open(cache_folder(os.environ) / "models" / options.model)
    backend = make_backend("fast", folder, all_roles(folder.card.num_layers), 1)
    found = []
    for depth in options.depths:
        print(f"depth {depth}", file=sys.stderr, flush=True)
        filled = {way: Filled(backend, way, depth) for way in options.ways}
        for one in filled.values():
            one.row()  # touches
            one.row_s.clear()
        for _ in range(options.rows // TURN_ROWS):
            for one in filled.values():
                for _ in range(TURN_ROWS):
                    one.row()
        first = statistics.median(filled[options.ways[0]].row_s)
        found += [
            {
                "way": way,
                "depth": depth,
                "row_ms": spread([1e3 * s for s in one.row_s]),
                "to_first": round(first / statistics.median(one.row_s), 3),
                "kv_bytes": one.kv_bytes,
            }
            for way, one in filled.items()
        ]
    return found


def rings(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A ring layer's step at every position, in turns; `to_first`: its time over that at the first position."""
    rng = np.random.default_rng(0)
    shape = RING_HEADS, RING_DIM
    weights = RingWeights(*rng.standard_normal((2, RING_HEADS, RING_SINKS, RING_DIM), np.float32))
    rope = RingRope(10_000.0 ** (-np.arange(RING_DIM // 2) / (RING_DIM // 2)))
    layers, row_s = {}, {position: [] for position in options.ring}
    for position in options.ring:
        layer = layers[position] = LayerKvCache(*shape)
        layer.install_bounded(RING_WINDOW)
        for _ in range(position):
            layer.bounded.insert(*rng.standard_normal((2, *shape), np.float32))
    q, out = (np.zeros(RING_HEADS * RING_PER_KV * RING_DIM, np.float32) for _ in range(2))
    for _ in range(options.rows):
        for position, layer in layers.items():
            k, v = rng.standard_normal((2, *shape), np.float32)
            start = time.thread_time()
            layer.bounded_step(q, k, v, weights, rope, RING_DIM**-0.5, RING_HEADS * RING_PER_KV, out)
            row_s[position].append(time.thread_time() - start)
    first = statistics.median(row_s[options.ring[0]])
    return [
        {
            "position": position,
            "row_us": spread([1e6 * s for s in row_s[position]]),
            "to_first": round(statistics.median(row_s[position]) / first, 3),
            "kv_bytes": layer.memory_bytes(),
        }
        for position, layer in layers.items()
    ]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--ways", nargs="+", default=["kv=f32", "o1=m=32,w=128", "o1=m=64,w=256"], metavar="NAME=VALUE …")
parser.add_argument("--depths", type=int, nargs="+", default=[2000, 4000, 8000])
parser.add_argument("--rows", type=int, default=48, help="computed at each depth or position")
parser.add_argument("--model", default="smollm2", help="a folder of the cache's models")
parser.add_argument("--ring", type=int, nargs="+", default=[128, 4096, 32768], help="positions of ring layers")

if __name__ == "__main__":
    chosen = parser.parse_args()
    print(json.dumps({"bench": "kv_rows", "machine": machine(), "decode": decoded(chosen), "ring": rings(chosen)}))
