"""Seeded weights of every GGUF type, as raw bytes and as packed matrices."""

from __future__ import annotations

import gguf
import numpy as np

from stations.layout import FORMATS, PackedMatrix, pack

KINDS = tuple(FORMATS)
_SCALE_OFFSETS = {"q8_0": [0], "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2]}
_SCALE_OFFSETS |= {"q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208]}


def raw_weights(kind: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Random bytes u8 [rows, row bytes] of a GGUF type: any code, scales of ordinary size."""
    rng = np.random.default_rng([seed, rows, cols])
    fmt = FORMATS[kind]
    if fmt.code_bits >= 16:
        values = rng.standard_normal((rows, cols), np.float32) * np.float32(0.1)
        if kind == "bf16":
            return gguf.quantize(values, gguf.GGMLQuantizationType.BF16)
        return values.astype(np.float16 if kind == "f16" else np.float32).view(np.uint8)
    blocks = rng.integers(0, 256, (rows, cols // fmt.source_block_cols, fmt.source_block_bytes), np.uint8)
    for at in _SCALE_OFFSETS[kind]:
        size = 0.001 if kind == "q8_0" else 0.0003 if kind.endswith("_k") else 0.01  # weights of about 0.1
        scale = (rng.standard_normal(blocks.shape[:2]) * size).astype(np.float16)
        blocks[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def dequantized(kind: str, raw: np.ndarray) -> np.ndarray:
    """f32 [rows, cols] by the `gguf` package."""
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()])


def packed_weights(kind: str, rows: int, cols: int, seed: int = 0) -> PackedMatrix:
    return pack(kind, raw_weights(kind, rows, cols, seed), rows, cols)
