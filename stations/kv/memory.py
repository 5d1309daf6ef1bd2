"""Zeroed arrays on cache-line boundaries: vector loads of 64 bytes never cross a line. Most lie in large pages.

What is read once a token is read at memory's speed, and in pages of 4 KB, each to be looked up and each the end of what
the processor foresees, that is two thirds of it (`benches/RESULTS.md`).
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from .large_pages import LARGE_PAGE_BYTES, POOL, Area
from .large_pages import LINE_BYTES as LINE_BYTES

LANES = 16  # rows a K tile and f32 values a vector
LEAST_POOLED_BYTES = 64 << 10
_CAN_ASK = hasattr(mmap, "MADV_HUGEPAGE")  # Linux

U8 = npt.NDArray[np.uint8]


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A C-contiguous zeroed array whose first byte is at a multiple of 64; a line behind its end may be read.

    Its memory is given back when its last view is gone. Raises MemoryError if there is none.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < LEAST_POOLED_BYTES or not _CAN_ASK:
        raw = np.zeros(size + 2 * LINE_BYTES, np.uint8)
        start = -raw.ctypes.data % LINE_BYTES
    else:
        raw, start = POOL.zeros(size + LINE_BYTES), 0
    return raw[start : start + size].view(kind).reshape(shape)


def large_zeros(size: int) -> U8:
    """`size` zeroed bytes in large pages of their own. Untouched pages cost nothing."""
    if not _CAN_ASK:
        return np.zeros(size, np.uint8)
    return Area(-(-size // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES).array(0, size)


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
