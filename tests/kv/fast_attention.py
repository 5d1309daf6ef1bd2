"""Calls the compiled attention on a cache, as a backend would."""

from __future__ import annotations

import numpy as np

from stations.kernels.fast.attention import attend_rows
from stations.kernels.fast.limits import attention_scratch_bytes
from stations.kv import LayerKvCache
from stations.kv.table import Header

from .kv_rows import F32

GUARD = 0xFF  # NaN: what is read before it is written shows


def fast_attend(
    cache: LayerKvCache, q: F32, first_row: int, *, scale: float | None = None, window: int = 0, softcap: float = 0.0,
    sinks: F32 | None = None, mass: F32 | None = None, heads_at_once: int = 0,
) -> F32:  # fmt: skip
    """q [rows, heads, dim] of the rows at `first_row` and behind → out of the same shape. Checks the scratch's end."""
    q = np.ascontiguousarray(q, np.float32)
    rows, num_heads, dim = q.shape
    per_kv = num_heads // cache.num_kv_heads
    out = np.full_like(q, 7)
    size = attention_scratch_bytes(first_row + rows, int(cache.table[Header.PADDED_DIM]))
    scratch = np.full(size + 64, GUARD, np.uint8)
    table = cache.reserve(0)
    for kv_head in range(cache.num_kv_heads):
        for lo in range(0, per_kv, heads_at_once or per_kv):
            hi = min(lo + (heads_at_once or per_kv), per_kv)
            at = (kv_head * per_kv + lo) * dim * 4
            attend_rows(
                table, kv_head, lo, hi, q.ctypes.data + at, num_heads * dim * 4, dim * 4, out.ctypes.data + at,
                num_heads * dim * 4, dim * 4, rows, first_row + 1, window,
                np.float32(dim**-0.5 if scale is None else scale), np.float32(softcap),
                0 if sinks is None else sinks.ctypes.data + (kv_head * per_kv + lo) * 4,
                0 if mass is None else mass.ctypes.data, 0 if mass is None else mass.strides[0], scratch.ctypes.data,
            )  # fmt: skip
    assert (scratch[size:] == GUARD).all(), "attention wrote beyond its scratch"
    return out
