"""Forward passes in which some layers' attention takes a residual seed instead of the layer's input. Numbers only.

A seed is h of the layer below ("h": x without its ffn) or x of the layer below ("x": without either). `Seeded.forward`
is the other model that this makes: keys and values are of seeded rows throughout. `Seeded.draft` is what the pipelined
draft computes: each row for itself, seeded, over the plain model's rows of all earlier positions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from aeonflow.kv_options import KvOptions

from ..core.kv_layout import KvLayout
from ..kernels.base import F32, Backend, Span
from ..kv.draft_view import DraftView
from ..kv.layer_cache import LayerKvCache
from ..models.card import ModelCard

Rows = npt.NDArray[np.int64]


class Seeded:
    """One text through a sequential model: its plain pass is made at once and kept, layer by layer.

    `x[l]` and `h[l]` are f32 [S, H]: input and residual past attention of layer l; `x[num_layers]` is the head's input.
    """

    def __init__(self, backend: Backend, card: ModelCard, ids: Sequence[int]) -> None:
        self._backend = backend
        self._card = card
        self._layout = KvLayout(card, KvOptions())
        self._num_rows = len(ids)
        self._views: list[DraftView] = []
        self.x: list[F32] = [backend.embed(np.array(ids, np.uint32), 0, 1)]
        self.h: list[F32] = []
        self._caches: list[LayerKvCache] = []
        for layer in range(card.num_layers):
            cache = self._new_cache(layer)
            h, n = backend.attn(layer, self.x[layer], [Span(cache, 0, self._num_rows)])
            self._caches.append(cache)
            self.h.append(h)
            self.x.append(backend.down(layer, h, backend.gate_up(layer, n)))

    def seed_of(self, layer: int, seed: str) -> F32:
        """What the attention of `layer` would be given, of the plain pass. [S, H]"""
        return self.h[layer - 1] if seed == "h" else self.x[layer - 1]

    def attention(self, layer: int, x: F32) -> F32:
        """What attention of `layer` adds to rows [S, H] when it takes these rows and no others, all of the text."""
        return self._backend.attn_delta(layer, x, [Span(self._new_cache(layer), 0, self._num_rows)])

    def forward(self, layers: Collection[int], seed: str) -> F32:
        """The head's input [S, H] when `layers` take a seed, all rows and their keys and values included."""
        spans = {layer: [Span(self._new_cache(layer), 0, self._num_rows)] for layer in self._above(layers)}
        return self._run(layers, seed, slice(None), spans)

    def draft(self, layers: Collection[int], seed: str, rows: Rows) -> F32:
        """The head's input [len(rows), H] of each of `rows` (positions) drafted over plain rows before it."""
        card = self._card
        while len(self._views) < len(rows):
            self._views.append(DraftView(card.num_kv_heads, card.head_dim))
        x = self._run(layers, seed, rows, {}, draft=[int(row) for row in rows])
        for view in self._views:
            view.show(None, 0, [])
        return x

    def _run(
        self,
        layers: Collection[int],
        seed: str,
        rows: slice | Rows,
        spans: dict[int, list[Span]],
        *,
        draft: Sequence[int] = (),
    ) -> F32:
        backend = self._backend
        above = self._above(layers)
        if not above:
            return self.x[-1][rows]
        x = self.x[above.start][rows]
        below = self.seed_of(above.start, seed)[rows]
        for layer in above:
            at = self._draft_spans(layer, draft) if draft else spans[layer]
            if layer in layers:
                h, n = backend.add_norm(layer, x, backend.attn_delta(layer, below, at))
            else:
                h, n = backend.attn(layer, x, at)
            below = h if seed == "h" else x
            x = backend.down(layer, h, backend.gate_up(layer, n))
        return x

    def _draft_spans(self, layer: int, positions: Sequence[int]) -> list[Span]:
        cache = self._caches[layer]
        for view, position in zip(self._views, positions, strict=False):
            view.show(cache, position, [])
        return [Span(view, position, 1) for view, position in zip(self._views, positions, strict=False)]

    def _above(self, layers: Collection[int]) -> range:
        """The layers that are not as in the plain pass: from the first seeded one on."""
        return range(min(layers, default=self._card.num_layers), self._card.num_layers)

    def _new_cache(self, layer: int) -> LayerKvCache:
        return self._layout.new_cache(layer, self._num_rows)
