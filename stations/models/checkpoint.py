"""What an importer offers, whatever the source: card, tokenizer, and tensors that are read by rows.

Tensors have the canonical names of GGUF (`blk.7.attn_q.weight`) and their weights in a ggml type, q and k rows in the
order of interleaved rotary pairs. Nothing is held: `SourceTensor.read` fetches the rows asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..layout import FORMATS, weight_format
from .card import ModelCard
from .errors import UnsupportedModelError
from .manifest import MAX_LAYERS

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


SUPPORTED_TYPES = ", ".join(kind.upper() for kind in FORMATS)


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A matrix (or vector: one row) of a checkpoint. `type` is a ggml name in capitals ("Q4_1").

    `read(lo, hi)` → u8 [hi - lo, row_bytes], the rows' bytes as GGUF stores that type.
    """

    name: str
    type: str
    rows: int
    cols: int
    read: Callable[[int, int], U8]

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.type, self.cols)

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes

    def vector(self) -> F32:
        """A float tensor of one row as f32 [cols]."""
        raw = self.read(0, 1).reshape(-1)
        if self.type == "F32":
            return raw.view("<f4").astype(np.float32)
        if self.type == "F16":
            return raw.view("<f2").astype(np.float32)
        if self.type == "BF16":
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        raise UnsupportedModelError(f"{self.name}: a norm of type {self.type}; F32, F16 and BF16 are supported")


def row_bytes(weight_type: str, cols: int) -> int:
    """Bytes of a row of `cols` weights as GGUF stores the type; `cols` is a multiple of the type's block."""
    fmt = weight_format(weight_type)
    return cols // fmt.source_block_cols * fmt.source_block_bytes


class Checkpoint(Protocol):
    """A model to import. `card` has no fingerprint yet; `tensors` holds exactly the canonical names it needs."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def tokenizer_json(self) -> str: ...

    @property
    def tensors(self) -> dict[str, SourceTensor]: ...


def expected_shapes(card: ModelCard) -> dict[str, tuple[int, int]]:
    """Canonical names and (rows, cols) of every tensor of a llama model; vectors (norms, sinks) have one row.

    UnsupportedModelError beyond MAX_LAYERS: a number out of a header, which is checked before a table is made of it.
    """
    if card.num_layers > MAX_LAYERS:
        raise UnsupportedModelError(f"{card.num_layers:,} layers; at most {MAX_LAYERS:,} are supported")
    hidden, ffn = card.hidden_size, card.ffn_size
    q, kv = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
    shapes = {"token_embd.weight": (card.vocab_size, hidden), "output_norm.weight": (1, hidden)}
    if not card.tied_embeddings:
        shapes["output.weight"] = (card.vocab_size, hidden)
    for layer in range(card.num_layers):
        of_layer = {
            "attn_norm": (1, hidden),
            "attn_q": (q, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_output": (hidden, q),
            "ffn_norm": (1, hidden),
            "ffn_gate": (ffn, hidden),
            "ffn_up": (ffn, hidden),
            "ffn_down": (hidden, ffn),
        }
        if card.attention.has_sinks:
            of_layer["attn_sinks"] = (1, card.num_heads)
        shapes.update((f"blk.{layer}.{name}.weight", shape) for name, shape in of_layer.items())
    return shapes


def check_tensors(card: ModelCard, tensors: dict[str, SourceTensor]) -> None:
    """Refuse a checkpoint with tensors missing, of other shapes, or unknown (they would change the result)."""
    expected = expected_shapes(card)
    if unknown := sorted(set(tensors) - set(expected)):
        raise UnsupportedModelError(
            f"{len(unknown)} tensors that a llama model of this version does not use, first {unknown[0]!r}: "
            "biases, experts and adapters are not supported"
        )
    if missing := sorted(set(expected) - set(tensors)):
        raise UnsupportedModelError(f"{len(missing)} tensors are missing, first {missing[0]!r}")
    for name, (rows, cols) in expected.items():
        t = tensors[name]
        if (t.rows, t.cols) != (rows, cols):
            raise UnsupportedModelError(f"{name} is {t.rows}x{t.cols}, the model's geometry needs {rows}x{cols}")
