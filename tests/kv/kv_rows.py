"""Rows, bits and an f64 oracle for the tests of the KV stack."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stations.kv import LayerKvCache

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def some_rows(seed: int, rows: int, heads: int, dim: int, spread: float = 1.0) -> F32:
    """f32 [rows, heads, dim] in (−spread, spread); row i of a seed is the same however many rows are asked for."""
    make = np.random.default_rng
    return np.stack([make([seed, i]).uniform(-spread, spread, (heads, dim)) for i in range(rows)]).astype(np.float32)


def filled(heads: int, dim: int, rows: int, mode: str = "f32", seed: int = 1) -> tuple[LayerKvCache, F32, F32]:
    """A cache of `rows` rows and the K and V that went in."""
    cache = LayerKvCache(heads, dim, mode)
    k, v = some_rows(seed, rows, heads, dim), some_rows(seed + 1000, rows, heads, dim)
    cache.append(k, v)
    return cache, k, v


def bits(values: F32) -> list[int]:
    return np.ascontiguousarray(values, np.float32).view(np.uint32).ravel().tolist()


def softmax_attention(
    q: F32, k: F32, v: F32, *, scale: float, softcap: float = 0.0, sink: float | None = None
) -> tuple[F64, F64]:
    """One query [dim] over rows k, v [rows, dim], in f64 → (out [dim], probabilities [rows])."""
    scores = k.astype(np.float64) @ q.astype(np.float64) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    column = scores if sink is None else np.append(scores, sink)
    e = np.exp(column - column.max())
    probs = (e / e.sum())[: len(k)]
    return probs @ v.astype(np.float64), probs
