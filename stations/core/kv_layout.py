"""The caches of a session's layers, as its KV options want them: made, sized, and asked for their state barriers."""

from __future__ import annotations

from collections.abc import Sequence

from aeonflow.kv_options import Barrier, KvOptions, OverlayOptions, layer_bytes, overlay_bytes

from ..kv.errors import KvFormError
from ..kv.eviction import policy_named
from ..kv.layer_cache import LayerKvCache
from ..models.card import ModelCard


class KvLayout:
    """One session's options on one model."""

    def __init__(self, card: ModelCard, options: KvOptions) -> None:
        self.options = options
        self._card = card

    def new_cache(self, layer: int, max_positions: int) -> LayerKvCache:
        """An empty cache of `layer` with room for the whole session: rows are never moved.

        Untouched pages cost nothing, so asking for all of it is free until rows come.
        """
        card, options, o1 = self._card, self.options, self._overlay(layer)
        rows = min(max_positions, options.max_rows or max_positions)
        if options.window:
            rows = min(rows, 2 * options.window + 1)
        if o1 is not None:
            rows = min(rows, o1.boundary)
        cache = LayerKvCache(card.num_kv_heads, card.head_dim, options.kv, rows, exact_recent=options.exact_recent)
        cache.wire_layer = layer
        if o1 is not None:
            cache.o1_begin(o1.m, o1.w, o1.sink, seal_at=o1.boundary)
        cache.reading.set(window=options.window, keeps_mass=options.keeps_mass)
        return cache

    def change_form(self, cache: LayerKvCache, position: int) -> None:
        """What is due at the state barrier `position`, before its row is stored: mass settled, rows gone. (The change
        of a coded row's form is the cache's own.)"""
        options = self.options
        cache.settle(position)
        if options.max_rows and cache.seq_len >= options.max_rows:
            policy = policy_named(options.eviction, options.sink_rows)
            cache.evict(options.max_rows - options.eviction_step, policy)
        if options.window:
            cache.trim_window_anchored(options.window, 0, 1, position)
        if cache.has_overlay:
            if not cache.o1_seal(self._card.num_heads):
                raise KvFormError(f"layer {cache.wire_layer} was not sealed at {position}: {cache.o1_error}")
            cache.o1_mark()

    def reserved_bytes(self, layers: Sequence[int], max_positions: int) -> int:
        """Bytes that `layers` take when the session is full: what is reserved of the station's KV budget."""
        card, options, o1 = self._card, self.options, self.options.o1
        num_overlays = sum(self._overlay(layer) is not None for layer in layers)
        plain = layer_bytes(options, max_positions, card.num_kv_heads, card.head_dim)
        total = (len(layers) - num_overlays) * plain
        if o1 is not None:
            collecting = min(max_positions, o1.boundary)
            total += num_overlays * layer_bytes(options, collecting, card.num_kv_heads, card.head_dim)
            total += num_overlays * overlay_bytes(o1, card.num_heads, card.num_kv_heads, card.head_dim)
        return total

    def barriers(self, layers: Sequence[int]) -> tuple[Barrier, ...]:
        """Where any of `layers` changes form, each barrier once."""
        kinds = {self._overlay(layer): layer for layer in layers}  # layers of one kind are alike: one tells for all
        found = {own for layer in kinds.values() if (own := self.new_cache(layer, 0).barriers) is not None}
        if layers:
            found.update(self.options.layout_barriers())
        found.update(Barrier(o1.boundary, 1) for o1 in kinds if o1)  # a sealed layer takes back the newest pass at most
        return tuple(sorted(found))

    def _overlay(self, layer: int) -> OverlayOptions | None:
        o1 = self.options.o1
        return o1 if o1 is not None and (o1.layers is None or layer in o1.layers) else None
