"""Zeroed arrays on cache-line boundaries: vector loads of 64 bytes never cross a line. Large ones lie in large pages.

What is read once a token is read at memory's speed, and in pages of 4 KB, each to be looked up and each the end of what
the processor foresees, that is two thirds of it (`benches/RESULTS.md`).
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

LINE_BYTES = 64
LANES = 16  # rows a K tile and f32 values a vector
LARGE_PAGE_BYTES = 2 << 20
_MOST_ADDED = 0.5  # of an array, for its last large page to be whole

U8 = npt.NDArray[np.uint8]


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A C-contiguous zeroed array whose first byte is at a multiple of 64. Untouched pages cost nothing.

    It lies in the large pages that it fills, the last one as well if that makes it no more than half as long again. A
    line behind its end may be read.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    needed = size + LINE_BYTES
    pages = -(-needed // LARGE_PAGE_BYTES)
    if pages * LARGE_PAGE_BYTES > size * (1 + _MOST_ADDED):
        pages = needed // LARGE_PAGE_BYTES
    raw = large_zeros(max(needed, pages * LARGE_PAGE_BYTES)) if pages else np.zeros(needed + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(kind).reshape(shape)


def large_zeros(size: int) -> U8:
    """`size` zeroed bytes from a boundary of large pages on: the system is asked for as many as are whole."""
    area = mmap.mmap(-1, size + LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(area, np.uint8)
    start = -memory.ctypes.data % LARGE_PAGE_BYTES
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            area.madvise(mmap.MADV_HUGEPAGE, start, size // LARGE_PAGE_BYTES * LARGE_PAGE_BYTES)
        except OSError:  # a kernel without them
            pass
    return memory[start : start + size]


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
