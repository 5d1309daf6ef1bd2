"""The caches of a session's layers, as its KV options want them: made, sized, and asked for their state barriers."""

from __future__ import annotations

from collections.abc import Sequence

from aeonflow.kv_options import Barrier, KvOptions, layer_bytes

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
        card, options = self._card, self.options
        return LayerKvCache(
            card.num_kv_heads, card.head_dim, options.kv, max_positions, exact_recent=options.exact_recent
        )

    def reserved_bytes(self, layers: Sequence[int], max_positions: int) -> int:
        """Bytes that `layers` take when the session is full: what is reserved of the station's KV budget."""
        return len(layers) * layer_bytes(self.options, max_positions, self._card.num_kv_heads, self._card.head_dim)

    def barriers(self, layers: Sequence[int]) -> tuple[Barrier, ...]:
        """Where any of `layers` changes form, each barrier once."""
        found = {self.new_cache(layer, 0).barriers for layer in layers}
        return tuple(sorted(Barrier(*barrier) for barrier in found if barrier is not None))
