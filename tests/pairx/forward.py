"""A model's logits in plain numpy f64, for each residual form: nothing of the kernels, the caches or the stations.

Only the rotary table (f64, cast to f32) is shared with them.
"""

from __future__ import annotations

import numpy as np

from stations.kernels.rotary import RotaryTable
from stations.layout import unpack
from stations.models.folder import ModelFolder


class Forward:
    """The weights of a generated model in f64."""

    def __init__(self, model: ModelFolder) -> None:
        self.card = model.card
        self._model = model
        self._layers = [self._layer(layer) for layer in range(self.card.num_layers)]
        self._embedding = self._matrix("embed", 0, "embedding")
        self._head = self._matrix("head", 0, "head")

    def logits(self, ids: list[int]) -> np.ndarray:
        """[len(ids), vocab] of one causal pass, by the card's residual."""
        x = self._embedding[ids]
        h = x
        for weights in self._layers:
            if self.card.residual == "parallel":
                x = (x + self._attention(weights, x)) + self._ffn(weights, x)
                continue
            h = x + self._attention(weights, h if self.card.residual == "ladder" else x)
            x = h + self._ffn(weights, h)
        return self._norm(x, self._model.norm("head", 0, "final_norm")) @ self._head.T

    def _layer(self, layer: int) -> dict[str, np.ndarray]:
        c, model = self.card, self._model
        qkv, gate_up = self._stacked("attn", layer, "qkv"), self._stacked("gate_up", layer, "gate_up")
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        return {
            "norm1": model.norm("attn", layer, "norm1"), "norm2": model.norm("gate_up", layer, "norm2"),
            "q": qkv[:q], "k": qkv[q : q + kv], "v": qkv[q + kv :], "output": self._matrix("attn", layer, "output"),
            "gate": gate_up[: c.ffn_size], "up": gate_up[c.ffn_size :], "down": self._matrix("down", layer, "down"),
        }  # fmt: skip

    def _stacked(self, role: str, layer: int, name: str) -> np.ndarray:
        parts = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}[name]
        names = (name,) if name in self._model.names(role, layer) else parts
        return np.concatenate([self._matrix(role, layer, one) for one in names])

    def _matrix(self, role: str, layer: int, name: str) -> np.ndarray:
        return unpack(self._model.matrix(role, layer, name)).astype(np.float64)

    def _norm(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self.card.rms_eps) * gain

    def _attention(self, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        c, n = self.card, self._norm(x, weights["norm1"])
        q, k, v = ((n @ weights[name].T).reshape(len(x), -1, c.head_dim) for name in ("q", "k", "v"))
        q, k = self._rotate(q), self._rotate(k)
        per_kv = c.num_heads // c.num_kv_heads
        out = np.zeros_like(q)
        for head in range(c.num_heads):
            scores = q[:, head] @ k[:, head // per_kv].T / np.sqrt(c.head_dim)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            e = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = e / e.sum(axis=1, keepdims=True) @ v[:, head // per_kv]
        return out.reshape(len(x), -1) @ weights["output"].T

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        dim = self.card.rope.dim
        table = RotaryTable(self.card.rope).upto(len(x))[: len(x), None, :].astype(np.float64)
        cos, sin = table[..., : dim // 2], table[..., dim // 2 :]
        out = x.copy()
        out[..., 0:dim:2] = x[..., 0:dim:2] * cos - x[..., 1:dim:2] * sin
        out[..., 1:dim:2] = x[..., 0:dim:2] * sin + x[..., 1:dim:2] * cos
        return out

    def _ffn(self, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        n = self._norm(x, weights["norm2"])
        gate = n @ weights["gate"].T
        return (gate / (1 + np.exp(-gate)) * (n @ weights["up"].T)) @ weights["down"].T
