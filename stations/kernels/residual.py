"""Layers in which attention and ffn do not simply follow one another, composed from a kernel set's primitives.

Ladder: h_l = x_l + attn_l(norm₁ h_{l−1}), x_{l+1} = h_l + ffn_l(norm₂ h_l), with h_{−1} = x_0: attention looks past the
ffn before it. Parallel: x_{l+1} = (x_l + attn_l(norm₁ x_l)) + ffn_l(norm₂ x_l). Sums are those of the sequential form,
so any plan gives the same bits (`docs/numerics.md`). Both kernel sets serve both forms; nothing here is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import F32, Backend, Span, add_rows


def ladder_attn(backend: Backend, layer: int, x: F32, below: F32, spans: Sequence[Span]) -> tuple[F32, F32]:
    """x, `below` = h of the layer before [S, H] → h = x + attn(norm₁ below), n = norm₂ h."""
    return backend.add_norm(layer, x, backend.attn_delta(layer, below, spans))


def parallel_attn(backend: Backend, layer: int, x: F32, spans: Sequence[Span]) -> tuple[F32, F32]:
    """x [S, H] → h = x + attn(norm₁ x), n = norm₂ x."""
    return add_rows(x, backend.attn_delta(layer, x, spans)), backend.norm2(layer, x)


def normed_gate_up(backend: Backend, layer: int, h: F32) -> F32:
    """h [S, H] → u = silu(n W_gate) ⊙ (n W_up) [S, F] of n = norm₂ h, where the norm did not come with attention."""
    return backend.gate_up(layer, backend.norm2(layer, h))


def ladder_block(
    backend: Backend, lo: int, hi: int, x: F32, below: F32, spans: Sequence[Sequence[Span]]
) -> tuple[F32, F32]:
    """Layers lo..hi of a ladder: x, `below` = h of layer lo − 1 (x itself at layer 0) → x', h of layer hi."""
    for layer, layer_spans in zip(range(lo, hi + 1), spans, strict=True):
        below, n = ladder_attn(backend, layer, x, below, layer_spans)
        x = backend.down(layer, below, backend.gate_up(layer, n))
    return x, below


def parallel_block(backend: Backend, lo: int, hi: int, x: F32, spans: Sequence[Sequence[Span]]) -> F32:
    """Layers lo..hi with attention and ffn side by side: x → x'."""
    for layer, layer_spans in zip(range(lo, hi + 1), spans, strict=True):
        h, n = parallel_attn(backend, layer, x, layer_spans)
        x = backend.down(layer, h, backend.gate_up(layer, n))
    return x
