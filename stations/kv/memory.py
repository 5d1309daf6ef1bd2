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
