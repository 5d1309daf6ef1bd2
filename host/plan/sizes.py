"""How many bytes a model's parts have: weights from its manifest (or estimated from its card), rows of KV, messages.

Cards and manifests arrive as parsed JSON or CBOR; nothing here opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from aeonflow.errors import PlanError
from aeonflow.kv_sizes import KvShape

LAYER_PARTS = ("attn", "gate_up", "down")


class DeclaredAttention(msgspec.Struct, frozen=True):
    """What a model declares of its attention, as far as bytes depend on it: rows that a query of each layer sees (0:
    all; empty: no layer slides)."""

    windows: tuple[int, ...] = ()


class Geometry(msgspec.Struct, frozen=True):
    """The sizes of a model that costs depend on, in elements. The one description of them on the host's side."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_length: int
    attention: DeclaredAttention = DeclaredAttention()

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> Self:
        """The fields of a parsed model card; PlanError names one that is missing or of no sense."""
        missing = [name for name in cls.__struct_fields__ if name not in card and name != "attention"]
        if missing:
            raise PlanError(f"the model card lacks {', '.join(missing)}")
        try:
            return msgspec.convert(dict(card), cls)
        except msgspec.ValidationError as error:
            raise PlanError(f"the model card: {error}") from error

    @property
    def attn_weights(self) -> int:
        """Of one layer's q, k, v and output."""
        return self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)

    @property
    def ffn_weights(self) -> int:
        """Of one layer's gate, up and down."""
        return 3 * self.hidden_size * self.ffn_size

    @property
    def head_weights(self) -> int:
        """Of the vocabulary's matrix."""
        return self.vocab_size * self.hidden_size

    @property
    def num_weights(self) -> int:
        """Weights that one row meets on its way: all matrices of the layers, and the head."""
        return self.num_layers * (self.attn_weights + self.ffn_weights) + self.head_weights

    @property
    def kv_shape(self) -> KvShape:
        """What bytes of KV depend on."""
        return KvShape(self.num_heads, self.num_kv_heads, self.head_dim, self.attention.windows)


class WeightSizes(msgspec.Struct, frozen=True):
    """Bytes of the weights: the ends, and attn, gate_up and down of each layer.

    `shared_ends`: bytes that embed and head both count, because a tied head reads embed's matrix.
    """

    embed: int
    head: int
    attn: tuple[int, ...]
    gate_up: tuple[int, ...]
    down: tuple[int, ...]
    shared_ends: int = 0

    def of_layer_role(self, role: str, layer: int) -> int:
        """Bytes of attn, gate_up or down at `layer`; of all three for block, of the last two for a whole ffn."""
        if role in ("block", "ffn"):
            ffn = self.gate_up[layer] + self.down[layer]
            return ffn + self.attn[layer] if role == "block" else ffn
        parts: dict[str, tuple[int, ...]] = {"attn": self.attn, "gate_up": self.gate_up, "down": self.down}
        return parts[role][layer]


def weights_from_manifest(manifest: Mapping[str, Any], num_layers: int) -> WeightSizes:
    """Sizes from a parsed manifest: files {role, layer, bytes, tensors}. PlanError names a file that is missing."""
    sizes: dict[tuple[str, int], int] = {}
    for entry in manifest["files"]:
        sizes[(entry["role"], entry["layer"])] = int(entry["bytes"])
    wanted = [("embed", 0), *((part, layer) for part in LAYER_PARTS for layer in range(num_layers))]
    missing = [f"{role} of layer {layer}" for role, layer in wanted if (role, layer) not in sizes]
    if missing:
        raise PlanError(f"the manifest has no weights for {missing[0]} ({len(missing)} missing)")
    tied = bool(manifest.get("tied_head"))
    layers = {part: tuple(sizes[(part, layer)] for layer in range(num_layers)) for part in LAYER_PARTS}
    embed = sizes[("embed", 0)]
    shared = embed if tied else 0
    return WeightSizes(embed=embed, head=sizes.get(("head", 0), 0) + shared, shared_ends=shared, **layers)


def weights_from_geometry(geometry: Geometry, bits_per_weight: float = 5.0) -> WeightSizes:
    """An estimate where there is no manifest yet; 5 bits is a 4-bit block format with scale and minimum."""
    g, n = geometry, geometry.num_layers

    def size(weights: int) -> int:
        return round(weights * bits_per_weight / 8)

    ends, down = size(g.head_weights), size(g.ffn_weights // 3)
    gate_up = size(g.ffn_weights // 3 * 2)
    return WeightSizes(ends, ends, (size(g.attn_weights),) * n, (gate_up,) * n, (down,) * n)
