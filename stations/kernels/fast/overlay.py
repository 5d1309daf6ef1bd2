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
from ..base import F32, Span
from ..weights import Weights
from . import fields as f
from .workspace import Workspace

RunRows = Callable[[int, F32, Sequence[Span]], tuple[F32, F32]]  # layer, x, spans → h, n; Q, K, V stay in the work area


class OverlayLayers:
    """Attention of spans of which some have an overlay. `run` computes plain ones."""

    def __init__(self, weights: Weights, workspace: Workspace, run: RunRows) -> None:
        self._weights = weights
        self._card = weights.card
        self._workspace = workspace
        self._run = run
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

    def _sealed(self, layer: int, x: F32, span: Span) -> tuple[F32, F32]:
        card = self._card
        rows_only = LayerKvCache(card.num_kv_heads, card.head_dim, capacity=span.rows)
        self._run(layer, x, [Span(rows_only, span.first, span.rows)])
        work = self._workspace.work
        q = self._area(span.rows, 0, card.num_heads)
        k, v = (self._area(span.rows, int(work[at]), card.num_kv_heads) for at in (f.WORK_K_COLUMN, f.WORK_V_COLUMN))
        h = np.empty_like(x)
        for i in range(span.rows):
            heads = span.cache.o1_step(q[i], k[i], v[i], card.num_heads)
            h[i] = x[i] + self._output_of(layer) @ heads
        return h, self._norm2(layer, h)

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
