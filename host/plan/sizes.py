"""How many bytes a model's parts have: weights from its manifest (or estimated from its card), rows of KV, messages.

Cards and manifests arrive as parsed JSON or CBOR; nothing here opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aeonflow.errors import PlanError

LAYER_PARTS = ("attn", "gate_up", "down")


class Geometry(msgspec.Struct, frozen=True):
    """The sizes of a model that costs depend on, in elements."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_length: int

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> Geometry:
        """The fields of a parsed model card; PlanError names one that is missing."""
        names = cls.__struct_fields__
        missing = [name for name in names if not isinstance(card.get(name), int)]
        if missing:
            raise PlanError(f"the model card lacks {', '.join(missing)}")
        return cls(**{name: card[name] for name in names})

    def kv_bytes_per_position(self) -> int:
        """K and V rows of one layer at one position, f32."""
        return 2 * self.num_kv_heads * self.head_dim * 4


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
    g = geometry

    def size(rows: int, cols: int) -> int:
        return round(rows * cols * bits_per_weight / 8)

    heads = (g.num_heads + 2 * g.num_kv_heads) * g.head_dim
    attn = size(heads, g.hidden_size) + size(g.hidden_size, g.num_heads * g.head_dim)
    ends = size(g.vocab_size, g.hidden_size)
    n = g.num_layers
    return WeightSizes(
        ends, ends, (attn,) * n, (size(2 * g.ffn_size, g.hidden_size),) * n, (size(g.hidden_size, g.ffn_size),) * n
    )
