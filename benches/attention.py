"""Attention of one decoded row at depth, in every storage mode, beside the machine's read bandwidth (METHOD.md)."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numba import njit

from host.bench.measure import machine, spread
from stations.kernels.fast.attention import attend_rows
from stations.kernels.fast.limits import attention_scratch_bytes
from stations.kv import LayerKvCache
from stations.kv.table import Header

KV_HEADS, PER_KV, DIM = 3, 3, 64  # SmolLM2's layer
LAYERS = 30  # distinct caches, visited in turn: no row is still in a cache of the processor when it is read again
READ_BYTES = 256 << 20


@njit(error_model="numpy")
def all_heads(table, q, out, seen, scale, scratch):  # type: ignore[no-untyped-def]
    """Every KV head of one row in one compiled call, as a layer is computed."""
    head = DIM * 4
    row = KV_HEADS * PER_KV * head
    for g in range(KV_HEADS):
        at = g * PER_KV * head
        attend_rows(table, g, 0, PER_KV, q + at, row, head, out + at, row, head, 1, seen, 0, scale, np.float32(0), 0, 0,
                    0, scratch)  # fmt: skip


def decode_row(cache: LayerKvCache) -> Callable[[], None]:
    """A call that computes every head of the newest row."""
    q = np.random.default_rng(1).standard_normal((KV_HEADS * PER_KV, DIM)).astype(np.float32)
    out = np.empty_like(q)
    scratch = np.empty(attention_scratch_bytes(cache.seq_len, int(cache.table[Header.PADDED_DIM])), np.uint8)
    table, scale = cache.reserve(0), np.float32(DIM**-0.5)

    def run() -> None:
        all_heads(table, q.ctypes.data, out.ctypes.data, cache.seq_len, scale, scratch.ctypes.data)

    return run


def timed(calls: list[Callable[[], None]]) -> float:
    """Seconds of processor time a call, each of `calls` once: what other processes take of the core does not count."""
    start = time.thread_time()
    for call in calls:
        call()
    return (time.thread_time() - start) / len(calls)


def read_rate(block: np.ndarray) -> float:
    """GB a second (of processor time) of reading `block` once, from memory."""
    start = time.thread_time()
    block.max()
    return block.nbytes / (time.thread_time() - start) / 1e9


def at_depth(depth: int, modes: list[str], runs: int) -> list[dict[str, object]]:
    """Every mode in turn, `runs` times."""
    rows = np.random.default_rng(depth).standard_normal((depth, KV_HEADS, DIM)).astype(np.float32)
    calls: dict[str, list[Callable[[], None]]] = {}
    sizes: dict[str, int] = {}
    for mode in modes:
        caches = [LayerKvCache(KV_HEADS, DIM, mode, depth) for _ in range(LAYERS)]
        for cache in caches:
            cache.append(rows, rows)
        calls[mode], sizes[mode] = [decode_row(cache) for cache in caches], caches[0].memory_bytes()
        timed(calls[mode])  # compiles and touches
    block = np.ones(READ_BYTES // 8, np.float64)
    seconds: dict[str, list[float]] = {mode: [] for mode in modes}
    shares: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(runs):
        for mode in modes:
            taken = timed(calls[mode])
            seconds[mode].append(taken)
            shares[mode].append(sizes[mode] / taken / 1e9 / read_rate(block))
    return [
        {
            "mode": mode,
            "rows": depth,
            "layer_bytes": sizes[mode],
            "row_us": spread([s * 1e6 for s in seconds[mode]]),
            "gb_s": spread([sizes[mode] / s / 1e9 for s in seconds[mode]]),
            "of_read_bandwidth": spread(shares[mode], 3),
        }
        for mode in modes
    ]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--depths", type=int, nargs="+", default=[100, 1000, 4000, 16000])
parser.add_argument("--modes", nargs="+", default=["f32", "f16", "q8", "q4"])
parser.add_argument("--runs", type=int, default=9)

if __name__ == "__main__":
    options = parser.parse_args()
    found = [result for depth in options.depths for result in at_depth(depth, options.modes, options.runs)]
    print(json.dumps({"bench": "attention", "machine": machine(), "results": found}))
