"""How far a layer's seed is from the layer's input, row by row, and how far attention moves when it takes the seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.shadows import difference
from ..kernels.base import F32
from .scores import F64
from .seeded import Seeded


class RowOffs(NamedTuple):
    """Of each row, f64 [S]: max |seed − x|; that over max |x|; ‖attn(seed) − attn(x)‖ / ‖attn(x)‖, Euclidean."""

    max_abs: F64
    relative: F64
    attention: F64


def offs(text: Seeded, layer: int, seed: str) -> RowOffs:
    """Of all rows of the plain pass over a text; attention of seeds is over the keys and values of seeds."""
    given, x = text.seed_of(layer, seed), text.x[layer]
    pairs = np.array([difference(given[row : row + 1], x[row : row + 1]) for row in range(len(x))])
    return RowOffs(pairs[:, 0], pairs[:, 1], _moves(text.attention(layer, given), text.attention(layer, x)))


def _moves(seeded: F32, plain: F32) -> F64:
    wide = plain.astype(np.float64)
    moves: F64 = np.linalg.norm(seeded - wide, axis=1) / np.linalg.norm(wide, axis=1)
    return moves
