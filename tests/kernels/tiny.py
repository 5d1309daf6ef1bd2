"""Small models in memory, of any geometry and weight type, and plain f64 arithmetic on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from stations.kernels import Span
from stations.kernels.rotary import RotaryTable
from stations.kv import LayerKvCache
from stations.layout import PackedMatrix, can_concat_rows, concat_rows, pack, unpack
from stations.models.card import ModelCard, Rope

from .weights import raw_weights


def tiny_card(**changes: Any) -> ModelCard:
    """A card of 2 layers, hidden 256, 4 heads of 64 over 2 KV heads, ffn 512, vocabulary 96."""
    values: dict[str, Any] = {
        "name": "tiny", "architecture": "llama", "num_layers": 2, "hidden_size": 256, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 64, "ffn_size": 512, "vocab_size": 96, "context_length": 512, "rms_eps": 1e-5,
        "rope": Rope(theta=10000.0, dim=64), "tied_embeddings": False, "bos_id": None, "eos_ids": (), "add_bos": False,
    }  # fmt: skip
    return ModelCard(**(values | changes))


class TinyWeights:
    """Seeded weights of one kind (`kinds` names another for some matrices), q|k|v and gate|up stacked if they can."""

    def __init__(self, kind: str, card: ModelCard | None = None, kinds: dict[str, str] | None = None) -> None:
        self.card = card or tiny_card()
        self._kind = kind
        self._kinds = kinds or {}
        self._made: dict[tuple[int, str], PackedMatrix] = {}
        c = self.card
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        self._shapes = {
            "q": (q, c.hidden_size), "k": (kv, c.hidden_size), "v": (kv, c.hidden_size), "output": (c.hidden_size, q),
            "gate": (c.ffn_size, c.hidden_size), "up": (c.ffn_size, c.hidden_size), "down": (c.hidden_size, c.ffn_size),
            "head": (c.vocab_size, c.hidden_size), "embedding": (c.vocab_size, c.hidden_size),
        }  # fmt: skip

    def names(self, role: str, layer: int) -> tuple[str, ...]:
        parts = {"attn": ("q", "k", "v"), "gate_up": ("gate", "up")}.get(role, ())
        kinds = [self._kinds.get(p, self._kind) for p in parts]
        if parts and can_concat_rows(kinds, [self._shapes[p][0] for p in parts]):
            return ("qkv",) if role == "attn" else ("gate_up",)
        return parts

    def norm(self, role: str, layer: int, name: str) -> np.ndarray:
        rng = np.random.default_rng([layer, len(name)])
        return (1 + 0.1 * rng.standard_normal(self.card.hidden_size)).astype(np.float32)

    def matrix(self, role: str, layer: int, name: str) -> PackedMatrix:
        stacked = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}.get(name)
        if stacked:
            return concat_rows([self.part(layer, p) for p in stacked])
        return self.part(layer, name)

    def part(self, layer: int, name: str) -> PackedMatrix:
        """One matrix, unstacked."""
        if (layer, name) not in self._made:
            kind = self._kinds.get(name, self._kind)
            rows, cols = self._shapes[name]
            raw = raw_weights(kind, rows, cols, seed=100 * layer + sorted(self._shapes).index(name))
            self._made[layer, name] = pack(kind, raw, rows, cols)
        return self._made[layer, name]

    def values(self, layer: int, name: str) -> np.ndarray:
        """f64 [rows, columns]."""
        return unpack(self.part(layer, name)).astype(np.float64)


def rows(count: int, width: int, seed: int = 0) -> np.ndarray:
    """Seeded activations f32 [count, width]."""
    return np.random.default_rng([seed, 77]).standard_normal((count, width)).astype(np.float32)


def bits(values: np.ndarray) -> np.ndarray:
    """The bit patterns, to be compared with ==: NaN equals NaN, +0 is not −0."""
    return np.ascontiguousarray(values).view(np.uint32)


def norm64(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * weight


def attn64(weights: TinyWeights, layer: int, x: np.ndarray) -> np.ndarray:
    """x + attention of one sequence from position 0, in f64 but for the rotary table."""
    c = weights.card
    n = norm64(x, weights.norm("attn", layer, "norm1"), c.rms_eps)
    q, k, v = (n @ weights.values(layer, name).T for name in ("q", "k", "v"))
    q, k, v = (a.reshape(len(x), -1, c.head_dim) for a in (q, k, v))
    half = c.rope.dim // 2
    table = RotaryTable(c.rope).upto(len(x))[: len(x), None, :].astype(np.float64)
    cos, sin = table[..., :half], table[..., half:]
    for a in (q, k):
        even, odd = a[..., 0 : c.rope.dim : 2].copy(), a[..., 1 : c.rope.dim : 2].copy()
        a[..., 0 : c.rope.dim : 2], a[..., 1 : c.rope.dim : 2] = even * cos - odd * sin, even * sin + odd * cos
    out = np.zeros_like(q)
    for head in range(c.num_heads):
        g = head // (c.num_heads // c.num_kv_heads)
        scores = q[:, head] @ k[:, g].T / np.sqrt(c.head_dim)
        scores[np.triu_indices(len(x), 1)] = -np.inf
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = e / e.sum(axis=1, keepdims=True) @ v[:, g]
    return x + out.reshape(len(x), -1) @ weights.values(layer, "output").T


def new_cache(backend: Any, capacity: int) -> LayerKvCache:
    """An empty f32 cache of one layer; `capacity` rows are expected (it may grow)."""
    return LayerKvCache(backend.card.num_kv_heads, backend.card.head_dim, capacity=capacity)


def run_layers(backend: Any, x: np.ndarray, cuts: list[int], capacity: int = 0) -> np.ndarray:
    """All layers over one fresh sequence, in passes of the given sizes."""
    last = backend.card.num_layers - 1
    caches = [new_cache(backend, capacity or len(x)) for _ in range(last + 1)]
    done, first = [], 0
    for size in cuts:
        part = x[first : first + size]
        done.append(backend.block(0, last, part, [[Span(cache, first, len(part))] for cache in caches]))
        first += len(part)
    assert first == len(x)
    return np.concatenate(done)
