"""What a kernel set reads of a model: the folder's interface, and which roles and layers it was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aeonflow.errors import UnsupportedError

from ..layout import PackedMatrix, slice_rows
from ..models.card import ModelCard
from ..models.roles import SLICED_ROLE, RoleSpan, layer_roles

F32 = npt.NDArray[np.float32]


class Weights(Protocol):
    """The part of `ModelFolder` that kernels use."""

    @property
    def card(self) -> ModelCard: ...
    def names(self, role: str, layer: int) -> tuple[str, ...]: ...
    def norm(self, role: str, layer: int, name: str) -> F32: ...
    def matrix(self, role: str, layer: int, name: str) -> PackedMatrix: ...


class GivenRoles:
    """The roles and layers a backend serves; anything else is refused by name."""

    def __init__(self, spans: Iterable[RoleSpan]) -> None:
        given = list(spans)
        self.pairs = layer_roles(span for span in given if span.role != SLICED_ROLE)
        self.slices = {
            (layer, span.part, span.parts)
            for span in given
            if span.role == SLICED_ROLE
            for layer in range(span.lo, span.hi + 1)
        }

    def layers(self, role: str) -> list[int]:
        return sorted(layer for name, layer in self.pairs if name == role)

    def require(self, role: str, layer: int = 0) -> None:
        """Raises UnsupportedError for a role and layer that were not given."""
        if (role, layer) not in self.pairs:
            given = ", ".join(f"{r}:{n}" for r, n in sorted(self.pairs))
            raise UnsupportedError(f"these kernels were not given {role} of layer {layer}; they have {given}")

    def require_one_of(self, roles: tuple[str, ...], layer: int) -> None:
        """Raises UnsupportedError where none of `roles` of that layer was given."""
        if not any((role, layer) in self.pairs for role in roles):
            self.require(roles[0], layer)

    def require_slice(self, layer: int, part: int, parts: int) -> None:
        """Raises UnsupportedError for an ffn slice that was not given."""
        if (layer, part, parts) not in self.slices:
            given = ", ".join(f"{p}/{k} of layer {n}" for n, p, k in sorted(self.slices)) or "no slice"
            raise UnsupportedError(f"these kernels were not given ffn slice {part}/{parts} of layer {layer}: {given}")


def qkv_parts(weights: Weights, layer: int) -> list[PackedMatrix]:
    """The Q, K and V matrices of a layer, whether stored as one or apart."""
    card = weights.card
    if "qkv" not in weights.names("attn", layer):
        return [weights.matrix("attn", layer, name) for name in ("q", "k", "v")]
    return _split(
        weights.matrix("attn", layer, "qkv"),
        [n * card.head_dim for n in (card.num_heads, card.num_kv_heads, card.num_kv_heads)],
    )


def gate_up_parts(weights: Weights, layer: int) -> list[PackedMatrix]:
    """The gate and up matrices of a layer, whether stored as one or apart."""
    if "gate_up" not in weights.names("gate_up", layer):
        return [weights.matrix("gate_up", layer, name) for name in ("gate", "up")]
    return _split(weights.matrix("gate_up", layer, "gate_up"), [weights.card.ffn_size] * 2)


def learned_sinks(weights: Weights, spans: Iterable[RoleSpan]) -> dict[int, F32]:
    """The sink logits f32 [query heads] of every layer that `spans` attend at; empty where the model has none."""
    if not weights.card.attention.has_sinks:
        return {}
    layers = [layer for role, layer in layer_roles(spans) if role == "attn"]
    return {layer: weights.norm("attn", layer, "sinks") for layer in layers}


def _split(matrix: PackedMatrix, rows: list[int]) -> list[PackedMatrix]:
    parts = []
    start = 0
    for count in rows:
        parts.append(slice_rows(matrix, start, start + count))
        start += count
    return parts
