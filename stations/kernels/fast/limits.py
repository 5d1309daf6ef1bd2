"""Sizes that compiled code and the memory prepared for it must agree on. Imports nothing."""

from __future__ import annotations

MAX_TILE_ROWS = 12  # rows of a tile on the widest CPU
ROWS_AT_ONCE = 120  # rows of one chunk of a product; a multiple of every tile size
CHUNK_BYTES = 1 << 16  # output of one chunk of a product
MAX_QUERIES = 16  # queries (rows × heads of one KV head) that share a pass of attention
ATTEND_ROWS = 16  # rows of one chunk of attention, about
ROW_BLOCK = 64  # stored rows handled for every query before the next ones are loaded: they stay in L1
CODED_BLOCK = 128  # the same for coded rows, a multiple of 16
CODED_GROUPS = 4  # queries at most whose products with coded keys are computed side by side
WEIGHED_GROUPS = 3  # the same with coded values: their sums fill the registers
TILE_BLOCK_BYTES = 132  # of a row's block in a tile: 32 values and their sum
INT8_BLOCK_BYTES = 52  # the same of 8-bit activations: 32 codes and five f32 (`int8.py`)
FORM_F32, FORM_INT8 = 0, 1  # forms of activations in tiles
_LANES = 16
_VECTOR_BYTES = 64
_MAX_SEGMENTS = 4
PLANES = 2  # bytes of a weight over coded rows, the higher first
LEVELS = 3  # vectors a query and group of 32 dims: lanes of whole weights, of whole levels, totals and steps
CODED_SUMS = 4  # words a query and dim that sums over coded rows take: two planes of i32, an f64


def coded_area_bytes(blocks: int) -> int:
    """Of sums and whole weights over coded rows of `blocks` vectors of 16 dims (`attention_coded.py`)."""
    groups = (blocks + 1) // 2
    own = CODED_SUMS * blocks * _VECTOR_BYTES + LEVELS * groups * _VECTOR_BYTES
    return MAX_QUERIES * own + WEIGHED_GROUPS * groups * PLANES * CODED_BLOCK


def attention_scratch_bytes(keys: int, padded_dim: int) -> int:
    """Scratch of one thread for rows that see up to `keys` stored rows."""
    tiles = -(-keys // _LANES) + 2 * _MAX_SEGMENTS
    weights = MAX_QUERIES * (tiles + 1) * _VECTOR_BYTES
    prepared = coded_area_bytes(padded_dim // _LANES)
    return weights + MAX_QUERIES * 3 * padded_dim * 4 + prepared + 20 * _VECTOR_BYTES
