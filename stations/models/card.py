"""The model card: everything a station or a host must know about a model besides its weights.

Frozen, written once at import as `card.json`, served to hosts at hello. The fingerprint covers the card, the
tokenizer and every tensor's digest, so two stations with equal fingerprints hold the same model.
"""

from __future__ import annotations

import math

import msgspec

LAYOUT_VERSION = 1


class RopeScaling(msgspec.Struct, frozen=True):
    """Llama 3 frequency scaling (the only kind supported); factors as in the HF config."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


class Rope(msgspec.Struct, frozen=True):
    """Rotary embedding on interleaved pairs (2i, 2i+1) of the first `dim` dims.

    Weights whose source pairs i with i + dim/2 (HF) are permuted at import, so kernels know one form. Tables are
    computed in f64 and cast to f32. `factors`: per-frequency divisors (GGUF `rope_freqs`), or None.
    """

    theta: float
    dim: int
    scaling: RopeScaling | None = None
    factors: tuple[float, ...] | None = None


class Attention(msgspec.Struct, frozen=True):
    """What a model declares of its attention beyond plain softmax over all rows. The defaults change nothing.

    `windows`: rows that a query of each layer sees, the newest, itself included (0: all); empty where no layer slides.
    `softcap`: scores s become cap · tanh(s / cap), 0 is off. `scale` of scores, 0: 1/√head_dim. `has_sinks`: attn files
    hold "sinks", a learned logit f32 a query head that joins the softmax without a value.
    """

    windows: tuple[int, ...] = ()
    softcap: float = 0.0
    scale: float = 0.0
    has_sinks: bool = False

    def named(self) -> str:
        """What is declared beside windows, in words."""
        found = (
            f"softcap {self.softcap:g}" if self.softcap else "",
            f"attention scale {self.scale:g}" if self.scale else "",
            "learned sinks" if self.has_sinks else "",
        )
        return ", ".join(filter(None, found))


PLAIN_ATTENTION = Attention()


class ModelCard(msgspec.Struct, frozen=True):
    """Geometry and text conventions. Sizes in elements; `ffn_size` is the intermediate width.

    `residual` says how attention and ffn of a layer meet, layer l with input x, h before it h' (`docs/models.md`):
    sequential x + attn(norm₁ x) = h, then h + ffn(norm₂ h); ladder x + attn(norm₁ h') = h, then h + ffn(norm₂ h), with
    h' = x at layer 0; parallel (x + attn(norm₁ x)) + ffn(norm₂ x).
    """

    name: str
    architecture: str  # "llama"
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_length: int
    rms_eps: float
    rope: Rope
    tied_embeddings: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool
    chat_template: str | None = None
    activation: str = "silu"
    residual: str = "sequential"  # one of RESIDUALS
    attention: Attention = PLAIN_ATTENTION
    layout_version: int = LAYOUT_VERSION
    source: str = ""  # what it was imported from, with the weight types found
    fingerprint: str = ""  # blake3, hex; "" only while importing

    @property
    def attention_scale(self) -> float:
        """What scores are multiplied by."""
        return self.attention.scale or 1.0 / math.sqrt(self.head_dim)
