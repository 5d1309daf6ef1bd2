"""Attention of one decoded row at depth, in every storage mode, beside the machine's read bandwidth (METHOD.md)."""

from __future__ import annotations

import argparse
import json
import os
import time

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
def all_layers(tables, q, out, seen, scale, scratch):  # type: ignore[no-untyped-def]
    """Every KV head of one row, cache after cache, in one compiled call, as layers are computed."""
    head = DIM * 4
    row = KV_HEADS * PER_KV * head
    for table in tables:
        for g in range(KV_HEADS):
            at = g * PER_KV * head
            attend_rows(table, g, 0, PER_KV, q + at, row, head, out + at, row, head, 1, seen, 0, scale, np.float32(0),
                        0, 0, 0, scratch)  # fmt: skip


class DecodedRow:
    """The newest row of every cache: `attend` computes all its heads, layer after layer."""

    def __init__(self, caches: list[LayerKvCache]) -> None:
        self._caches = caches  # what the tables name lives as long as they
        self._q = np.random.default_rng(1).standard_normal((KV_HEADS * PER_KV, DIM)).astype(np.float32)
        self._out = np.empty_like(self._q)
        keys = caches[0].seq_len
        size = attention_scratch_bytes(keys, int(caches[0].table[Header.PADDED_DIM]))
        self._scratch = np.empty(size, np.uint8)
        tables = np.array([cache.reserve(0) for cache in caches])
        addresses = (array.ctypes.data for array in (self._q, self._out))
        self._arguments = tables, *addresses, keys, np.float32(DIM**-0.5), self._scratch.ctypes.data

    def attend(self) -> float:
        """Seconds of processor time a layer: what other processes take of the core does not count."""
        start = time.thread_time()
        all_layers(*self._arguments)
        return (time.thread_time() - start) / len(self._caches)


def read_rate(block: np.ndarray) -> float:
    """GB a second (of processor time) of reading `block` once, from memory."""
    start = time.thread_time()
    block.max()
    return block.nbytes / (time.thread_time() - start) / 1e9


def at_depth(depth: int, modes: list[str], runs: int) -> list[dict[str, object]]:
    """Every mode in turn, `runs` times."""
    rows = np.random.default_rng(depth).standard_normal((depth, KV_HEADS, DIM)).astype(np.float32)
    decoded: dict[str, DecodedRow] = {}
    sizes: dict[str, int] = {}
    for mode in modes:
        caches = [LayerKvCache(KV_HEADS, DIM, mode, depth) for _ in range(LAYERS)]
        for cache in caches:
            cache.append(rows, rows)
        decoded[mode], sizes[mode] = DecodedRow(caches), caches[0].memory_bytes()
        decoded[mode].attend()  # compiles and touches
    block = np.ones(READ_BYTES // 8, np.float64)
    seconds: dict[str, list[float]] = {mode: [] for mode in modes}
    shares: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(runs):
        for mode in modes:
            taken = decoded[mode].attend()
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
