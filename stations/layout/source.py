"""Reads the blocks of GGUF weight types into fields, one form for all: codes, scales, minima.

`Fields` hold what a block says, without arithmetic, so the packed layout can keep every bit. The formulas of the
source types are those of the `gguf` package (`gguf/quants.py`); `field_values` gives its numbers bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .formats import BLOCK_COLS, weight_format

U8 = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]

_ZERO_POINT = {"q4_0": 8, "q5_0": 16, "q6_k": 32, "q8_0": 128}


class Fields(NamedTuple):
    """Rows of one matrix taken apart. n rows, B blocks of 32, U units (K-quants: super-blocks of 8 blocks).

    `codes` is u8 [n, B, 32] (u16 or u32 bit patterns for unquantised kinds). `scale` and `minimum` are f16 [n, U];
    for K-quants `sub_scale` and `sub_minimum` are u8 [n, B] (q6_k: sub_scale i8 as u8 [n, B, 2], two halves a block).
    """

    codes: npt.NDArray[np.unsignedinteger]
    scale: F16 | None = None
    minimum: F16 | None = None
    sub_scale: U8 | None = None
    sub_minimum: U8 | None = None


def read_fields(kind: str, raw: U8) -> Fields:
    """`raw` u8 [n, row bytes] of GGUF type `kind` → Fields. Unquantised rows are padded to whole blocks with zeros."""
    if kind in ("f32", "f16", "bf16"):
        return _read_plain(kind, raw)
    fmt = weight_format(kind)
    blocks = raw.reshape(raw.shape[0], -1, fmt.source_block_bytes)
    if kind == "q8_0":
        return Fields(blocks[:, :, 2:] ^ np.uint8(0x80), scale=_f16(blocks[:, :, :2]))
    if kind in ("q4_0", "q4_1", "q5_0", "q5_1"):
        return _read_legacy(kind, blocks)
    if kind == "q6_k":
        return _read_q6_k(blocks)
    return _read_q45_k(kind, blocks)


def _f16(raw: U8) -> F16:
    return np.ascontiguousarray(raw).view(np.float16)[..., 0]


def _read_plain(kind: str, raw: U8) -> Fields:
    words = np.ascontiguousarray(raw).view(np.uint32 if kind == "f32" else np.uint16)
    cols = -(-words.shape[1] // BLOCK_COLS) * BLOCK_COLS
    padded = np.zeros((words.shape[0], cols), words.dtype)
    padded[:, : words.shape[1]] = words
    return Fields(padded.reshape(words.shape[0], -1, BLOCK_COLS))


def _read_legacy(kind: str, blocks: U8) -> Fields:
    has_minimum = kind.endswith("_1")
    at = 4 if has_minimum else 2
    codes = np.concatenate([blocks[:, :, -16:] & 15, blocks[:, :, -16:] >> 4], axis=-1)
    if kind.startswith("q5"):
        codes |= np.unpackbits(blocks[:, :, at : at + 4], axis=-1, bitorder="little") << np.uint8(4)
    return Fields(codes, scale=_f16(blocks[:, :, :2]), minimum=_f16(blocks[:, :, 2:4]) if has_minimum else None)


def _read_q45_k(kind: str, blocks: U8) -> Fields:
    n, units, _ = blocks.shape
    low, low_min, high = (blocks[:, :, 4 + 4 * i : 8 + 4 * i] for i in range(3))
    sub_scale = np.concatenate([low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)], axis=-1)
    sub_minimum = np.concatenate([low_min & 0x3F, (high >> 4) | ((low_min >> 2) & 0x30)], axis=-1)
    nibbles = blocks[:, :, -128:].reshape(n, units, 4, 1, 32)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=3).reshape(n, units, 8, 32)
    if kind == "q5_k":
        plane = blocks[:, :, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
        codes |= (plane & 1) << np.uint8(4)
    return Fields(
        codes.reshape(n, units * 8, 32),
        scale=_f16(blocks[:, :, 0:2]),
        minimum=_f16(blocks[:, :, 2:4]),
        sub_scale=sub_scale.reshape(n, -1),
        sub_minimum=sub_minimum.reshape(n, -1),
    )


def _read_q6_k(blocks: U8) -> Fields:
    n, units, _ = blocks.shape
    nibbles = blocks[:, :, :128].reshape(n, units, 2, 1, 64)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=3).reshape(n, units, 2, 4, 32)
    plane = blocks[:, :, 128:192].reshape(n, units, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    codes |= (plane & 3) << np.uint8(4)
    return Fields(
        codes.reshape(n, units * 8, 32),
        scale=_f16(blocks[:, :, 208:210]),
        sub_scale=np.ascontiguousarray(blocks[:, :, 192:208]).reshape(n, units * 8, 2),
    )


def field_values(kind: str, fields: Fields) -> F32:
    """Fields → weights f32 [n, B·32], in the source type's own order of operations."""
    codes = fields.codes
    n = codes.shape[0]
    if kind == "f32":
        return codes.view(np.float32).reshape(n, -1)
    if kind == "f16":
        return codes.view(np.float16).astype(np.float32).reshape(n, -1)
    if kind == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(n, -1)
    assert fields.scale is not None
    q = codes.astype(np.float32) - np.float32(_ZERO_POINT.get(kind, 0))
    scale = fields.scale.astype(np.float32)
    if kind == "q6_k":
        assert fields.sub_scale is not None
        sub = fields.sub_scale.view(np.int8).reshape(n, -1, 16).astype(np.float32)
        return ((scale[:, :, None] * sub).reshape(n, -1, 1) * q.reshape(n, -1, 16)).reshape(n, -1)
    if fields.sub_scale is not None:
        assert fields.minimum is not None
        assert fields.sub_minimum is not None
        low = fields.minimum.astype(np.float32)[:, :, None] * fields.sub_minimum.reshape(n, -1, 8).astype(np.float32)
        step = scale[:, :, None] * fields.sub_scale.reshape(n, -1, 8).astype(np.float32)
        return (step.reshape(n, -1, 1) * q - low.reshape(n, -1, 1)).reshape(n, -1)
    values = scale[:, :, None] * q
    if fields.minimum is not None:
        values = values + fields.minimum.astype(np.float32)[:, :, None]
    return values.reshape(n, -1)
