"""Attention over 8-bit rows of a segment: scores and weighted sums in whole numbers, block by block.

The meaning is that of `stations/kv/codes8.py`. A query's largest weight times row scale sets its step, then weights go
through a small area, a block of rows at a time, so that V is loaded once for all queries of a pass.
"""

from __future__ import annotations

from stations.kv.table import Segment

from .attention_forms import VECTOR
from .attention_ir import clear
from .attention_q8_ir import (
    PLANES,
    WIDE,
    coded_scores,
    fold_totals,
    gather_planes,
    weigh_words,
    weight_step,
    whole_query,
    whole_weights,
)
from .compiled import compiled
from .limits import CODED_BLOCK, CODED_GROUPS, CODED_SUMS, MAX_QUERIES, WEIGHED_GROUPS
from .machine import field
from .vector import LANES

TILES = CODED_BLOCK // LANES  # that queries visit in turn
FLUSH_TILES = (1 << 16) // LANES  # 2^16 / 4 sums of 4 · 255 · 128 at most fit 31 bits

_K, _K_STRIDE, _K_SCALE = int(Segment.K), int(Segment.K_STRIDE), int(Segment.K_SCALE)
_K_SCALE_STRIDE, _K_COLUMN = int(Segment.K_SCALE_STRIDE), int(Segment.K_COLUMN)
_V, _V_STRIDE, _V_SCALE = int(Segment.V), int(Segment.V_STRIDE), int(Segment.V_SCALE)
_V_SCALE_STRIDE, _V_COLUMN = int(Segment.V_SCALE_STRIDE), int(Segment.V_COLUMN)


@compiled
def score_coded(segment, kv_head, tile, tiles, blocks, q, q_stride, scale, out, out_stride, spare, queries):
    """Scores of every query against `tiles` tiles from `tile` on. spare: as large as the queries, `q_stride` too."""
    column = field(segment, _K_COLUMN)
    if column != 0:
        column += kv_head * q_stride
    for n in range(queries):
        whole_query(q + n * q_stride, column, blocks, spare + n * q_stride)
    tile_bytes, scale_bytes = blocks * LANES * LANES, (blocks + 1) // 2 * VECTOR
    keys = field(segment, _K) + kv_head * field(segment, _K_STRIDE) + tile * tile_bytes
    scales = field(segment, _K_SCALE) + kv_head * field(segment, _K_SCALE_STRIDE) + tile * scale_bytes
    step = TILES if queries > CODED_GROUPS else tiles
    for done in range(0, tiles, step):
        some = min(step, tiles - done)
        n = 0
        while n < queries:
            group = min(queries - n, CODED_GROUPS)
            coded_scores(group, keys + done * tile_bytes, scales + done * scale_bytes, some, blocks,
                         spare + n * q_stride, q_stride, scale, out + n * out_stride + done * VECTOR,
                         out_stride)  # fmt: skip
            n += group


@compiled
def weigh_coded(
    segment, kv_head, tile, tiles, blocks, w, w_stride, acc, acc_stride, den, area, queries, heads, seen, rows
):
    """Weighted sums and denominators over `tiles` tiles from `tile` on: weights outside the visible rows are zeros.

    Query n sees the segment's rows below seen + n // heads, at most `rows`.
    area: for each of MAX_QUERIES its sums i32 [PLANES, padded_dim], totals f64 [padded_dim], step and unit in a vector;
    then the weights of a block, WEIGHED_GROUPS queries.
    """
    wide = blocks * VECTOR
    stride = CODED_SUMS * wide + VECTOR
    planes = area + MAX_QUERIES * stride
    values = field(segment, _V) + kv_head * field(segment, _V_STRIDE) + tile * LANES * blocks * LANES
    scales = field(segment, _V_SCALE) + kv_head * field(segment, _V_SCALE_STRIDE) + tile * VECTOR
    column = field(segment, _V_COLUMN)
    if column != 0:
        column += kv_head * wide
    for n in range(queries):
        clear(area + n * stride, CODED_SUMS * blocks)
        weight_step(w + n * w_stride, scales, tiles, area + n * stride + CODED_SUMS * wide)
    planes_stride = CODED_BLOCK * PLANES
    for done in range(0, tiles, TILES):
        some = min(TILES, tiles - done)
        codes, row_scales = values + done * LANES * blocks * LANES, scales + done * VECTOR
        n = 0
        while n < queries:
            group = min(queries - n, WEIGHED_GROUPS) if queries - n != WEIGHED_GROUPS + 1 else 2  # 2 + 2, not 3 + 1
            own, weights = area + n * stride, w + n * w_stride + done * VECTOR
            for m in range(group):
                end = min(seen + (n + m) // heads, rows)
                distance = end - 1 - (tile + done) * LANES
                whole_weights(weights + m * w_stride, row_scales, some, distance, own + m * stride + CODED_SUMS * wide,
                              planes + m * planes_stride)  # fmt: skip
            block, total = 0, den + n * 4
            while block < blocks:
                columns = WIDE if blocks - block >= WIDE else 1
                weigh_words(group, columns, codes + block * VECTOR, some, blocks, planes, planes_stride, weights,
                            w_stride, own + block * VECTOR, stride, total)  # fmt: skip
                total = den + MAX_QUERIES * 4  # a row's weight counts once, with its first columns
                block += columns
            n += group
        if done + some == tiles or (done + some) % FLUSH_TILES == 0:
            for n in range(queries):
                gather_planes(area + n * stride, blocks, area + n * stride + PLANES * wide)
    for n in range(queries):
        own = area + n * stride
        fold_totals(acc + n * acc_stride, own + PLANES * wide, own + CODED_SUMS * wide + 4, column, blocks)
