"""Attention over a layer's stored rows, the plain version: what every kernel must mean, in obvious numpy.

For one query q of one KV head, over the visible rows j in ascending order (`docs/kv-cache.md`, *Attention*):

    s_j = scale · Σ_d q_d k_jd          (softcap c > 0:  s_j ← c · tanh(s_j / c))
    m   = max(max_j s_j, sink)          e_j = exp(s_j − m), and 0 where that is below 1e-12
    out = Σ_j e_j v_j / (exp(sink − m) + Σ_j e_j)

Both sums run over the rows one by one. A row that is masked, out of the window or skipped adds an exact zero, so the
result depends on the ordered list of visible rows only: not on where they are stored, which rows were dropped before
them, nor on the queries beside it. A sink is a logit without a value. No visible row: zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

SKIP_BELOW = np.float32(1e-12)  # relative to the largest weight; such a row would change no bit that matters


class RowSegment(Protocol):
    """Consecutive stored rows of one form (exact, f16, coded), counted from 0 within the segment."""

    @property
    def rows(self) -> int: ...

    def dots(self, slot: int, q: F32, first: int, upto: int) -> F32:
        """q [n, padded_dim] → raw scores [n, upto − first]."""
        ...

    def weigh(self, slot: int, weights: F32, first: int, upto: int, ends: I64, acc: F32) -> None:
        """acc [n, padded_dim] += Σ_j weights_j v_j, rows ascending. Query n sees this segment's rows below ends[n]."""
        ...


class Softmax(NamedTuple):
    """How scores become weights. `scale` multiplies the dot product; `softcap` 0 is off; `sinks` is [n] or empty."""

    scale: float
    softcap: float
    sinks: F32


def attend(
    segments: Sequence[RowSegment], slot: int, q: F32, first: I64, upto: I64, softmax: Softmax
) -> tuple[F32, F32, int]:
    """n queries of one KV head over its rows.

    q [n, padded_dim]; query i sees rows [first[i], upto[i]). Returns (out [n, padded_dim], probabilities
    [n, hi − lo], lo), where [lo, hi) spans every query's rows.
    """
    lo, hi = int(first.min()), int(upto.max())
    out = np.zeros_like(q)
    if hi <= lo:
        return out, np.zeros((len(q), 0), np.float32), lo
    scores = np.concatenate([s.dots(slot, q, a, b) for s, _, a, b in _overlaps(segments, lo, hi)], axis=1)
    weights, denominator = _weights(scores, first - lo, upto - lo, softmax)
    for segment, start, a, b in _overlaps(segments, lo, hi):
        ends = np.minimum(upto - start, segment.rows)
        segment.weigh(slot, np.ascontiguousarray(weights[:, start + a - lo : start + b - lo]), a, b, ends, out)
    safe: F32 = np.where(denominator > 0, denominator, np.float32(1)).astype(np.float32)[:, None]
    return out / safe + np.float32(0), weights / safe, lo


def _overlaps(segments: Sequence[RowSegment], lo: int, hi: int) -> list[tuple[RowSegment, int, int, int]]:
    """The segments that hold rows [lo, hi): (segment, its first stored row, first and end row within it)."""
    found = []
    start = 0
    for segment in segments:
        a, b = max(lo - start, 0), min(hi - start, segment.rows)
        if a < b:
            found.append((segment, start, a, b))
        start += segment.rows
    return found


def _weights(scores: F32, first: I64, upto: I64, softmax: Softmax) -> tuple[F32, F32]:
    """Unnormalised weights e [n, rows], zero outside [first, upto), and the denominators [n]."""
    s = scores * np.float32(softmax.scale)
    if softmax.softcap > 0:
        cap = np.float32(softmax.softcap)
        s = cap * np.tanh(s / cap)
    column = np.arange(s.shape[1])
    visible = (column >= first[:, None]) & (column < upto[:, None])
    s = np.where(visible, s, np.float32(-np.inf))
    top = s.max(axis=1)
    if len(softmax.sinks):
        top = np.maximum(top, softmax.sinks)
    base = np.where(np.isneginf(top), np.float32(0), top)
    e = np.exp(s - base[:, None])
    e = np.where(e < SKIP_BELOW, np.float32(0), e)
    start = np.exp(softmax.sinks - base) if len(softmax.sinks) else np.zeros(len(s), np.float32)
    running = np.concatenate([start[:, None], e], axis=1)
    return e, np.add.accumulate(running, axis=1, dtype=np.float32)[:, -1]
