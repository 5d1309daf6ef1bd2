"""The KV caches of a run of layers, as one sequence holds them."""

from __future__ import annotations

from .layer_cache import LayerKvCache


class KvCache:
    """`num_layers` caches of one sequence; `max_seq_len` rows are the bound of each."""

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, max_seq_len: int, mode: str = "f32") -> None:
        self.layers = [LayerKvCache(num_kv_heads, head_dim, mode) for _ in range(num_layers)]
        for index, layer in enumerate(self.layers):
            layer.wire_layer = index
        self.max_seq_len = max_seq_len

    @property
    def seq_len(self) -> int:
        """The absolute depth: the largest next position of any layer."""
        return max((layer.pos_len for layer in self.layers), default=0)

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
