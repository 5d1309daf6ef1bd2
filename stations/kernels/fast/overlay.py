"""Layers with an O(1) overlay (`stations/kv/overlay.py`) beside the compiled layers: numpy where landmarks are read.

While a layer collects queries its rows are computed as ever, and the rotated queries are taken from the work area. Once
it is sealed only norm, projections and rotation are compiled; every row is then read through sinks, window and
landmarks, and the output projection runs on unpacked weights, row by row. numpy sums in an order of its own, so such
layers are `cut: bounded` between machines; on one machine rows do not depend on their company here either.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from ...kv.layer_cache import LayerKvCache
from ...layout import unpack
from ..base import F32, Span, add_rows
from ..weights import Weights
from . import fields as f
from .workspace import Workspace

# layer, x, spans → h, n, or a alone; Q, K, V stay in the work area
RunRows = Callable[[int, F32, Sequence[Span]], tuple[F32, F32]]
RunDelta = Callable[[int, F32, Sequence[Span]], F32]


class OverlayLayers:
    """Attention of spans of which some have an overlay. `run` and `run_delta` compute plain ones."""

    def __init__(self, weights: Weights, workspace: Workspace, run: RunRows, run_delta: RunDelta) -> None:
        self._weights = weights
        self._card = weights.card
        self._workspace = workspace
        self._run = run
        self._run_delta = run_delta
        self._output: dict[int, F32] = {}

    def attn(self, layer: int, x: F32, spans: Sequence[Span]) -> tuple[F32, F32]:
        """`Backend.attn`, span by span."""
        done = []
        row = 0
        for span in spans:
            rows = x[row : row + span.rows]
            row += span.rows
            if span.cache.o1_sealed:
                done.append(self._sealed(layer, rows, span))
                continue
            done.append(self._run(layer, rows, [span]))
            if span.cache.has_overlay:
                span.cache.o1_push_q(self._area(span.rows, 0, self._card.num_heads))
        return np.concatenate([h for h, _ in done]), np.concatenate([n for _, n in done])

    def delta(self, layer: int, x: F32, spans: Sequence[Span]) -> F32:
        """`Backend.attn_delta`, span by span."""
        done = []
        row = 0
        for span in spans:
            rows = x[row : row + span.rows]
            row += span.rows
            if span.cache.o1_sealed:
                done.append(self._sealed_delta(layer, rows, span))
                continue
            done.append(self._run_delta(layer, rows, [span]))
            if span.cache.has_overlay:
                span.cache.o1_push_q(self._area(span.rows, 0, self._card.num_heads))
        return np.concatenate(done)

    def _sealed(self, layer: int, x: F32, span: Span) -> tuple[F32, F32]:
        h = add_rows(x, self._sealed_delta(layer, x, span))
        return h, self._norm2(layer, h)

    def _sealed_delta(self, layer: int, x: F32, span: Span) -> F32:
        card = self._card
        rows_only = LayerKvCache(card.num_kv_heads, card.head_dim, capacity=span.rows)
        self._run_delta(layer, x, [Span(rows_only, span.first, span.rows)])
        work = self._workspace.work
        q = self._area(span.rows, 0, card.num_heads)
        k, v = (self._area(span.rows, int(work[at]), card.num_kv_heads) for at in (f.WORK_K_COLUMN, f.WORK_V_COLUMN))
        a = np.empty_like(x)
        for i in range(span.rows):
            heads = span.cache.o1_step(q[i], k[i], v[i], card.num_heads)
            a[i] = self._output_of(layer) @ heads
        return a

    def _area(self, rows: int, column: int, heads: int) -> F32:
        """What the last call left of `heads` heads at byte `column` of its Q, K, V rows: f32 [rows, heads · dim]."""
        work, width = self._workspace.work, heads * self._card.head_dim
        stride, start = int(work[f.WORK_QKV_STRIDE]), int(work[f.WORK_QKV]) + column
        out = np.empty((rows, width), np.float32)
        for i in range(rows):
            ctypes.memmove(out[i].ctypes.data, start + i * stride, width * 4)
        return out

    def _output_of(self, layer: int) -> F32:
        if layer not in self._output:
            self._output[layer] = unpack(self._weights.matrix("attn", layer, "output"))
        return self._output[layer]

    def _norm2(self, layer: int, h: F32) -> F32:
        gain = self._weights.norm("attn", layer, "norm2")
        means = np.array([np.mean(row * row, dtype=np.float32) for row in h], np.float32)
        roots = np.sqrt(means + np.float32(self._card.rms_eps))
        return np.multiply(h / roots[:, None], gain, dtype=np.float32)
