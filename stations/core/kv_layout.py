"""The caches of a session's layers, as its KV options want them: made, sized, and asked for their state barriers."""

from __future__ import annotations

from collections.abc import Sequence

from aeonflow.kv_options import Barrier, KvOptions, layer_bytes

from ..kv.eviction import Born, EvictionPolicy, Recent
from ..kv.layer_cache import LayerKvCache
from ..models.card import ModelCard


class KvLayout:
    """One session's options on one model."""

    def __init__(self, card: ModelCard, options: KvOptions) -> None:
        self.options = options
        self._card = card
        policy = Born if options.eviction == "born" else Recent
        self._policy: EvictionPolicy = policy(options.sink_rows)

    def new_cache(self, layer: int, max_positions: int) -> LayerKvCache:
        """An empty cache of `layer` with room for the whole session: rows are never moved.

        Untouched pages cost nothing, so asking for all of it is free until rows come.
        """
        card, options = self._card, self.options
        rows = min(max_positions, options.max_rows or max_positions)
        if options.window:
            rows = min(rows, 2 * options.window + 1)
        cache = LayerKvCache(card.num_kv_heads, card.head_dim, options.kv, rows, exact_recent=options.exact_recent)
        cache.reading.set(window=options.window, keeps_mass=options.keeps_mass)
        return cache

    def change_form(self, cache: LayerKvCache, position: int) -> None:
        """What is due at the state barrier `position`, before its row is stored: mass settled, rows gone. (The change
        of a coded row's form is the cache's own.)"""
        options = self.options
        cache.settle(position)
        if options.max_rows and cache.seq_len >= options.max_rows:
            cache.evict(options.max_rows - options.eviction_step, self._policy)
        if options.window:
            cache.trim_window_anchored(options.window, 0, 1, position)

    def reserved_bytes(self, layers: Sequence[int], max_positions: int) -> int:
        """Bytes that `layers` take when the session is full: what is reserved of the station's KV budget."""
        return len(layers) * layer_bytes(self.options, max_positions, self._card.num_kv_heads, self._card.head_dim)

    def barriers(self, layers: Sequence[int]) -> tuple[Barrier, ...]:
        """Where any of `layers` changes form, each barrier once."""
        found = {self.new_cache(layer, 0).barriers for layer in layers}
        own = self.options.layout_barriers() if layers else ()
        return tuple(sorted({*own, *(Barrier(*barrier) for barrier in found if barrier is not None)}))
