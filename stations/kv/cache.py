"""The KV caches of a run of layers, as one sequence holds them, and eviction over them."""

from __future__ import annotations

from .eviction import Born, EvictionPolicy
from .layer_cache import LayerKvCache


class KvCache:
    """`num_layers` caches of one sequence. `max_seq_len` rows a layer call for eviction by `policy`."""

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_dim: int, max_seq_len: int, mode: str = "f32", *,
        exact_recent: int | None = None,
    ) -> None:  # fmt: skip
        self.layers = [LayerKvCache(num_kv_heads, head_dim, mode, exact_recent=exact_recent) for _ in range(num_layers)]
        for index, layer in enumerate(self.layers):
            layer.wire_layer = index
        self.max_seq_len = max_seq_len
        self.policy: EvictionPolicy = Born()

    @property
    def seq_len(self) -> int:
        """The absolute depth: the largest next position of any layer."""
        return max((layer.pos_len for layer in self.layers), default=0)

    def needs_eviction(self) -> bool:
        """Whether a layer that stores rows without end holds `max_seq_len` of them. Tails bound themselves."""
        return any(layer.is_evictable and layer.seq_len >= self.max_seq_len for layer in self.layers)

    def evict(self, keep: int) -> None:
        """Every evictable layer down to `keep` rows."""
        for layer in self.layers:
            if layer.is_evictable:
                layer.evict(keep, self.policy)

    def clear(self) -> None:
        for layer in self.layers:
            layer.clear()

    def truncate_to(self, position: int) -> None:
        """Drop every layer's rows at or above `position`."""
        for layer in self.layers:
            layer.truncate_to(position)

    def total_memory_bytes(self) -> int:
        """Everything: `attention_state_bytes` + `recurrent_state_bytes`."""
        return sum(layer.memory_bytes() for layer in self.layers)

    def recurrent_state_bytes(self) -> int:
        """Recurrent states and their scratch."""
        return sum(layer.recurrent_bytes() for layer in self.layers)

    def attention_state_bytes(self) -> int:
        """K, V, scales, columns, importance, rings and overlays."""
        return sum(layer.attention_bytes() for layer in self.layers)
