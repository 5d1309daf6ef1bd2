"""Weights and values made from hashes: the same bytes everywhere. What the numerics id is taken of (`numerics.py`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from ...layout import PackedMatrix, packed_bytes, weight_format
from ...models.card import ModelCard, Rope, RopeScaling

F32 = npt.NDArray[np.float32]

CARD = ModelCard(
    name="numerics", architecture="llama", num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=2, head_dim=64,
    ffn_size=512, vocab_size=64, context_length=64, rms_eps=1e-5,
    rope=Rope(theta=10000.0, dim=64, scaling=RopeScaling(8.0, 1.0, 4.0, 32)), tied_embeddings=False, bos_id=None,
    eos_ids=(), add_bos=False,
)  # fmt: skip
_SHAPES = {"qkv": (512, 256), "output": (256, 256), "gate_up": (1024, 256), "down": (256, 512), "head": (64, 256)}


class SeededWeights:
    """A layer, head and embedding of one weight kind."""

    card = CARD

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def names(self, role: str, layer: int) -> tuple[str, ...]:
        return {"attn": ("norm1", "qkv", "output", "norm2"), "gate_up": ("norm2", "gate_up")}.get(role, ())

    def norm(self, role: str, layer: int, name: str) -> F32:
        return seeded_values(f"norm {name}", CARD.hidden_size) + np.float32(1)

    def matrix(self, role: str, layer: int, name: str) -> PackedMatrix:
        return seeded_matrix(self._kind, *_SHAPES.get(name, (CARD.vocab_size, CARD.hidden_size)), name)


def seeded_values(name: str, count: int) -> F32:
    """`count` f32 in steps of 1/256 between −½ and ½."""
    raw = np.frombuffer(blake3(name.encode()).digest(count), np.int8)
    return raw.astype(np.float32) * np.float32(1 / 256)


def seeded_matrix(kind: str, rows: int, cols: int, name: str) -> PackedMatrix:
    """Any codes, scales of the size that makes outputs as large as inputs."""
    fmt = weight_format(kind)
    size = packed_bytes(kind, rows, cols)
    if fmt.code_bits >= 16:
        values = seeded_values(f"{kind} {name}", size * 8 // fmt.code_bits) * np.float32(0.25)
        if kind == "bf16":
            return PackedMatrix(
                kind, rows, cols, (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
            )
        return PackedMatrix(kind, rows, cols, values.astype(np.float16 if kind == "f16" else np.float32).view(np.uint8))
    data = np.frombuffer(bytearray(blake3(f"{kind} {name}".encode()).digest(size)), np.uint8)
    units = data.reshape(-1, fmt.unit_bytes)
    step = 0.25 / (1 << fmt.code_bits) / (32 if fmt.unit_blocks > 1 else 1)
    halves = units[:, -fmt.tail_bytes :] if fmt.unit_blocks > 1 else units[:, fmt.scale_offset :]
    raw = halves.reshape(-1, 2)[:, 0].view(np.int8).astype(np.float32)
    halves[:] = (raw * np.float32(step / 64)).astype(np.float16).view(np.uint8).reshape(halves.shape)
    return PackedMatrix(kind, rows, cols, data)
