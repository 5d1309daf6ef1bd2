"""The caches of a session's layers, as its KV options and the model's card want them: made, sized, their barriers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aeonflow.kv_options import CODED_MODES, UNDO_ROWS, Barrier, KvOptions, check_on_model, is_barrier
from aeonflow.kv_sizes import KvShape, session_bytes

from ..kv.errors import KvFormError
from ..kv.eviction import Born, expected_use, policy_named
from ..kv.layer_cache import LayerKvCache
from ..kv.streams import F32
from ..models.card import ModelCard

NO_SINKS: Mapping[int, F32] = {}


class KvLayout:
    """One session's options on one model. `sinks`: learned logits f32 [query heads] of layers that have them.

    Raises UnsupportedError for options that contradict what the model declares.
    """

    def __init__(self, card: ModelCard, options: KvOptions, sinks: Mapping[int, F32] = NO_SINKS) -> None:
        self.options = options
        self._card = card
        self._sinks = sinks
        declared = card.attention
        check_on_model(options, declared.windows, declared.named())
        self._shape = KvShape(card.num_heads, card.num_kv_heads, card.head_dim, declared.windows)
        self._layers: dict[int, KvOptions] = {}

    def new_cache(self, layer: int, max_positions: int) -> LayerKvCache:
        """An empty cache of `layer` with room for the whole session: rows are never moved.

        Untouched pages cost nothing, so asking for all of it is free until rows come.
        """
        card, options = self._card, self._on_layer(layer)
        rows = min(max_positions, options.max_rows or max_positions)
        if options.window:
            rows = min(rows, 2 * options.window + 1)
        if options.o1 is not None:
            rows = min(rows, options.o1.boundary)
        recent = options.recent_rows if options.kv in CODED_MODES else None
        cache = LayerKvCache(card.num_kv_heads, card.head_dim, options.kv, rows, exact_recent=recent)
        cache.wire_layer = layer
        if options.o1 is not None:
            cache.o1_begin(options.o1.m, options.o1.w, options.o1.sink, seal_at=options.o1.boundary)
        cache.reading.set(
            window=options.window,
            softcap=card.attention.softcap,
            sinks=self._sinks.get(layer),
            keeps_mass=options.keeps_mass,
        )
        return cache

    def change_form(self, cache: LayerKvCache, position: int) -> None:
        """What is due at the state barrier `position`, before its row is stored: mass settled, rows gone. (The change
        of a coded row's form is the cache's own.) Nothing is due at the barriers of other layers alone."""
        options = self._on_layer(cache.wire_layer)
        cache.settle(position)
        if options.max_rows and cache.seq_len >= options.max_rows:
            self._evict(cache, options, position)
        if options.keeps_mass and is_barrier(options.layout_barriers(), position):
            cache.end_mass_block(position)
        if options.window:
            cache.trim_window_anchored(options.window, 0, 1, position)
        if cache.has_overlay:
            if not cache.o1_seal(self._card.num_heads):
                raise KvFormError(f"layer {cache.wire_layer} was not sealed at {position}: {cache.o1_error}")
            cache.o1_mark()

    def _evict(self, cache: LayerKvCache, options: KvOptions, position: int) -> None:
        policy, keep = policy_named(options.eviction, options.sink_rows), options.max_rows - options.eviction_step
        by = None
        if isinstance(policy, Born):
            contested = policy.contested(cache.seq_len, keep)
            by = expected_use(cache.latest_mass, cache.importance, cache.positions, position, contested)
        cache.evict(keep, policy, by)

    def reserved_bytes(self, layers: Sequence[int], max_positions: int) -> int:
        """Bytes that `layers` take when the session is full: what is reserved of the station's KV budget."""
        return session_bytes(self.options, layers, max_positions, self._shape)

    def barriers(self, layers: Sequence[int]) -> tuple[Barrier, ...]:
        """Where any of `layers` changes form, each barrier once."""
        kinds = {self._on_layer(layer): layer for layer in layers}  # layers of one kind are alike: one tells for all
        found = {own for layer in kinds.values() if (own := self.new_cache(layer, 0).barriers) is not None}
        for options in kinds:
            found.update(options.layout_barriers())
            if options.o1 is not None:
                found.add(Barrier(options.o1.boundary, UNDO_ROWS))  # rows since then can be taken back
        return tuple(sorted(found))

    def _on_layer(self, layer: int) -> KvOptions:
        found = self._layers.get(layer)
        if found is None:
            found = self._layers[layer] = self.options.on_layer(layer, self._shape.window(layer))
        return found
