"""Stores rows through the compiled code that backends use, without rotating them."""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from stations.kernels.fast.rope import rotate_and_store
from stations.kv import LayerKvCache

from .kv_rows import F32


@cache
def _compiled():  # type: ignore[no-untyped-def]
    @njit(error_model="numpy")
    def store(scratch, k, v, row_bytes, kv_heads, head_dim, table, rows):  # type: ignore[no-untyped-def]
        for i in range(rows):
            rotate_and_store(scratch, k + i * row_bytes, v + i * row_bytes, 0, kv_heads, head_dim, 0, 0, table, i)

    return store


def fast_append(cache: LayerKvCache, k: F32, v: F32) -> None:
    """k, v [rows, kv_heads, head_dim], appended pass by pass up to the cache's barriers."""
    at, spare = 0, np.zeros((1, *k.shape[1:]), np.float32)  # whole vectors are read behind a row
    k, v = (np.ascontiguousarray(np.concatenate([x, spare, spare]), np.float32) for x in (k, v))
    while at < len(k) - 2:
        cache.reserve(1)
        rows = min(cache.room(), len(k) - 2 - at)
        table = cache.reserve(rows)
        _compiled()(0, k[at:].ctypes.data, v[at:].ctypes.data, k.strides[0], k.shape[1], k.shape[2], table, rows)
        cache.commit(rows)
        at += rows
