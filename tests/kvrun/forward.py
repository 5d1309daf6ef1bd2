"""A model's forward pass in f64, from its card and weights alone: no cache, no kernel, every row at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stations.kernels.weights import gate_up_parts, qkv_parts
from stations.layout import unpack
from stations.models.card import ModelCard
from stations.models.folder import ModelFolder

F64 = npt.NDArray[np.float64]


def logits_f64(model: ModelFolder, ids: Sequence[int], card: ModelCard | None = None) -> F64:
    """[rows, vocabulary]; `card` in place of the model's own."""
    card = card or model.card
    x = unpack(model.matrix("embed", 0, "embedding")).astype(np.float64)[list(ids)]
    for layer in range(card.num_layers):
        n = _norm(card, x, model.norm("attn", layer, "norm1"))
        q, k, v = (n @ unpack(part).astype(np.float64).T for part in qkv_parts(model, layer))
        x = x + _attention(model, card, layer, q, k, v) @ unpack(model.matrix("attn", layer, "output")).T
        n = _norm(card, x, model.norm("gate_up", layer, "norm2"))
        gate, up = (n @ unpack(part).astype(np.float64).T for part in gate_up_parts(model, layer))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ unpack(model.matrix("down", layer, "down")).T
    return _norm(card, x, model.norm("head", 0, "final_norm")) @ unpack(model.matrix("head", 0, "head")).T


def _attention(model: ModelFolder, card: ModelCard, layer: int, q: F64, k: F64, v: F64) -> F64:
    declared, rows = card.attention, len(q)
    q, k = _rotated(card, q, card.num_heads), _rotated(card, k, card.num_kv_heads)
    v = v.reshape(rows, card.num_kv_heads, card.head_dim)
    window = declared.windows[layer] if declared.windows else 0
    at = np.arange(rows)
    age = at[:, None] - at[None, :]
    visible = (age >= 0) & ((age < window) if window else True)
    out = np.empty((rows, card.num_heads, card.head_dim))
    for head in range(card.num_heads):
        group = head // (card.num_heads // card.num_kv_heads)
        scores = q[:, head] @ k[:, group].T * (declared.scale or card.head_dim**-0.5)
        if declared.softcap:
            scores = declared.softcap * np.tanh(scores / declared.softcap)
        weights = np.where(visible, np.exp(scores), 0.0)
        sink = np.exp(float(model.norm("attn", layer, "sinks")[head])) if declared.has_sinks else 0.0
        out[:, head] = weights @ v[:, group] / (weights.sum(axis=1, keepdims=True) + sink)
    return out.reshape(rows, -1)


def _rotated(card: ModelCard, x: F64, heads: int) -> F64:
    x = x.reshape(len(x), heads, card.head_dim)
    frequencies = card.rope.theta ** (-np.arange(0, card.rope.dim, 2) / card.rope.dim)
    turn = np.exp(1j * np.arange(len(x))[:, None, None] * frequencies)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def _norm(card: ModelCard, x: F64, gain: npt.NDArray[np.float32]) -> F64:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + card.rms_eps) * gain
