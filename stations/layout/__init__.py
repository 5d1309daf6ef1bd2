"""Packed weights: the one layout in which matrices lie on disk, in memory, and under the kernels (numpy only)."""

from .formats import BLOCK_COLS, FORMATS, GROUP_ROWS, WeightFormat, weight_format
from .matrix import (
    NUM_SEGMENTS,
    PackedMatrix,
    can_concat_rows,
    concat_rows,
    ffn_slice,
    packed_bytes,
    padded_cols,
    segment_bounds,
    slice_cols,
    slice_rows,
)
from .packing import pack, unpack

__all__ = [
    "BLOCK_COLS",
    "FORMATS",
    "GROUP_ROWS",
    "NUM_SEGMENTS",
    "PackedMatrix",
    "WeightFormat",
    "can_concat_rows",
    "concat_rows",
    "ffn_slice",
    "pack",
    "packed_bytes",
    "padded_cols",
    "segment_bounds",
    "slice_cols",
    "slice_rows",
    "unpack",
    "weight_format",
]
