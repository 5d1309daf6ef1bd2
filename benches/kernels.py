"""Products of packed weights by kind and rows, one thread, beside the machine's read bandwidth (METHOD.md)."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from host.bench.measure import machine, spread
from stations.kernels.fast.cache import CompileCache
from stations.kernels.fast.limits import MAX_TILE_ROWS
from stations.kernels.fast.loader import LoadedUnits
from stations.kernels.fast.numerics import seeded_matrix
from stations.kernels.fast.target import current_target
from stations.kernels.fast.units import product_unit
from stations.layout import FORMATS, PackedMatrix
from stations.models.store import cache_folder

OUTPUTS, INPUTS = 3072, 1536
WEIGHT_BYTES = 96 << 20  # matrices in all: more than a processor's caches, as the weights of a model are
READ_BYTES = 256 << 20


def matrices(kind: str) -> list[PackedMatrix]:
    """Distinct matrices of one kind, WEIGHT_BYTES together."""
    first = seeded_matrix(kind, OUTPUTS, INPUTS, "bench")
    copies = max(WEIGHT_BYTES // first.data.nbytes, 2)
    return [PackedMatrix(kind, OUTPUTS, INPUTS, first.data.copy()) for _ in range(copies)]


def product_call(units: LoadedUnits, weights: list[PackedMatrix], rows: int) -> Callable[[], float]:
    """A call that multiplies `rows` rows by the next matrix in turn and returns the seconds it took."""
    product = units.function(product_unit(weights[0].kind))
    blocks = weights[0].num_blocks
    tiles = np.random.default_rng(rows).standard_normal((rows + MAX_TILE_ROWS) * blocks * 33).astype(np.float32)
    out = np.empty((rows, OUTPUTS), np.float32)
    turn = 0

    def run() -> float:
        nonlocal turn
        turn = (turn + 1) % len(weights)
        start = time.perf_counter()
        product(weights[turn].data.ctypes.data, blocks, 0, OUTPUTS // 16, tiles.ctypes.data, rows, out.ctypes.data,
                OUTPUTS * 4, 1, 0, 1)  # fmt: skip
        return time.perf_counter() - start

    return run


def read_rate(block: np.ndarray) -> float:
    """GB a second of reading `block` once, from memory."""
    start = time.perf_counter()
    block.max()
    return block.nbytes / (time.perf_counter() - start) / 1e9


def measure(units: LoadedUnits, kind: str, row_counts: list[int], runs: int) -> list[dict[str, object]]:
    """Every number of rows in turn, `runs` times."""
    weights = matrices(kind)
    calls = {rows: product_call(units, weights, rows) for rows in row_counts}
    block = np.ones(READ_BYTES // 8, np.float64)
    seconds: dict[int, list[float]] = {rows: [] for rows in row_counts}
    rates = []
    for turn in range(runs + 1):
        rates.append(read_rate(block))
        for rows, call in calls.items():
            taken = call()
            if turn:  # the first touches
                seconds[rows].append(taken)
    size, macs = weights[0].data.nbytes, OUTPUTS * INPUTS
    return [
        {
            "kind": kind,
            "rows": rows,
            "matrix_bytes": size,
            "gmac_s": spread([rows * macs / s / 1e9 for s in seconds[rows]]),
            "gb_s": spread([size / s / 1e9 for s in seconds[rows]]),
            "read_gb_s": spread(rates),
        }
        for rows in row_counts
    ]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kinds", nargs="+", choices=tuple(FORMATS), default=list(FORMATS))
parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 12, 64])
parser.add_argument("--runs", type=int, default=25)

if __name__ == "__main__":
    options = parser.parse_args()
    cache = CompileCache(cache_folder(os.environ), current_target(os.environ), os.environ)
    names = tuple(product_unit(kind) for kind in options.kinds)
    cache.ensure(names)
    loaded = LoadedUnits(cache, names)
    found = [result for kind in options.kinds for result in measure(loaded, kind, options.rows, options.runs)]
    print(json.dumps({"bench": "kernels", "machine": machine(), "results": found}))
