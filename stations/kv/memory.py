"""Zeroed arrays on cache-line boundaries: vector loads of 64 bytes never cross a line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

LINE_BYTES = 64
LANES = 16  # rows a K tile and f32 values a vector


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A C-contiguous zeroed array whose first byte is at a multiple of 64. Untouched pages cost nothing."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.zeros(size + 2 * LINE_BYTES, np.uint8)  # a line behind the end may be read
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(kind).reshape(shape)


def padded(width: int) -> int:
    """The smallest multiple of 16 that is ≥ width."""
    return -(-width // LANES) * LANES


def to_tiles(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """rows [..., n, dim] → tiles [..., ⌈n / 16⌉, padded dim, 16], zeros where there are none."""
    *outer, n, dim = rows.shape
    tiles = -(-n // LANES)
    out = aligned_zeros((*outer, tiles, padded(dim), LANES), np.float32)
    wide = np.zeros((*outer, tiles * LANES, dim), np.float32)
    wide[..., :n, :] = rows
    out[..., :dim, :] = wide.reshape(*outer, tiles, LANES, dim).swapaxes(-1, -2)
    return out


def from_tiles(tiles: npt.NDArray[np.float32], rows: int, dim: int) -> npt.NDArray[np.float32]:
    """The first `rows` rows of tiles [..., tiles, padded dim, 16], f32 [..., rows, dim]. A copy."""
    wide = tiles.swapaxes(-1, -2)[..., :dim]
    return np.ascontiguousarray(wide.reshape(*tiles.shape[:-3], -1, dim)[..., :rows, :])


def copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy on a cache line of its own."""
    out = aligned_zeros(array.shape, array.dtype)
    out[...] = array
    return out
