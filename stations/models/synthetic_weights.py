"""Seeded weights of generated models, in blocks of rows, so that any slab read gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .checkpoint import F32, U8, row_bytes

BLOCK_ROWS = 256  # rows generated at once; part of a model's definition, as each block has its own seed

# The gguf package quantises no K types, so theirs are random bytes under chosen scales. Per type: where the f16 scale
# d lies in a super-block, the ratio dmin / d that centres the weights (0: the type has no minimum), and the standard
# deviation of the weights for d = 1 when codes and sub-scales are uniform.
_K_TYPES = {"q4_k": (0, 7.5, 258.0), "q5_k": (0, 15.5, 527.0), "q6_k": (208, 0.0, 1366.0)}


def block_reader(weight_type: str, seed: tuple[int, int], rows: int, cols: int, std: float) -> Callable[[int, int], U8]:
    """`read(lo, hi)` → u8 [hi - lo, row_bytes] of a rows × cols matrix of standard deviation `std`."""

    def block(index: int) -> U8:
        rng = np.random.default_rng([*seed, index])
        count = min(BLOCK_ROWS, rows - index * BLOCK_ROWS)
        if weight_type in _K_TYPES:
            return _random_super_blocks(weight_type, rng, count, cols, std)
        return _quantize(weight_type, rng.standard_normal((count, cols), np.float32) * np.float32(std))

    def read(lo: int, hi: int) -> U8:
        first, last = lo // BLOCK_ROWS, -(-hi // BLOCK_ROWS)
        data = np.concatenate([block(i) for i in range(first, last)])
        return data[lo - first * BLOCK_ROWS : hi - first * BLOCK_ROWS]

    return read


def _quantize(weight_type: str, values: F32) -> U8:
    if weight_type == "f32":
        return values.view(np.uint8)
    if weight_type == "f16":
        return values.astype("<f2").view(np.uint8)
    from gguf import GGMLQuantizationType, quants  # here: a station that reads models does without it

    data = quants.quantize(values, GGMLQuantizationType[weight_type.upper()])
    return np.ascontiguousarray(data).view(np.uint8).reshape(len(values), -1)


def _random_super_blocks(weight_type: str, rng: np.random.Generator, rows: int, cols: int, std: float) -> U8:
    at, ratio, unit_std = _K_TYPES[weight_type]
    width = row_bytes(weight_type, cols)
    raw = rng.integers(0, 256, (rows, cols // 256, width // (cols // 256)), np.uint8)
    scale = np.float16(std / unit_std)
    raw[:, :, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    if ratio:
        raw[:, :, at + 2 : at + 4] = np.frombuffer(np.float16(scale * np.float16(ratio)).tobytes(), np.uint8)
    return raw.reshape(rows, width)
