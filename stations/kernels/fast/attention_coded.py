"""Attention over 8-bit and 4-bit rows of a segment: scores and weighted sums in whole numbers, block by block.

The meaning is that of `stations/kv/codes8.py` and `codes4.py`. A query's largest weight times row scale sets its step,
then weights go through a small area, a block of rows at a time, so that V is loaded once for all queries of a pass.
"""

from __future__ import annotations

from stations.kv.table import Form, Segment

from .attention_forms import VECTOR
from .attention_ir import WIDE, clear
from .attention_q4_ir import HALF_BYTES, fold_levels, gather_levels, level_steps, nibble_scores, whole_levels
from .attention_q8_ir import coded_scores, fold_totals, weight_step, whole_query, whole_weights
from .attention_whole_ir import gather_planes, weigh_words
from .compiled import compiled
from .limits import CODED_BLOCK, CODED_GROUPS, CODED_SUMS, LEVELS, MAX_QUERIES, PLANES, WEIGHED_GROUPS
from .machine import field
from .vector import LANES

TILES = CODED_BLOCK // LANES  # that queries visit in turn
FLUSH_TILES = 512  # sums of so many tiles fit 31 bits: of rows' levels, 2^21 at most each; of weights times codes too
TOTALS_BYTES = 2 * VECTOR  # of each of LEVELS, where totals stand

_K, _K_STRIDE, _K_SCALE = int(Segment.K), int(Segment.K_STRIDE), int(Segment.K_SCALE)
_K_SCALE_STRIDE, _K_COLUMN = int(Segment.K_SCALE_STRIDE), int(Segment.K_COLUMN)
_V, _V_STRIDE, _V_SCALE = int(Segment.V), int(Segment.V_STRIDE), int(Segment.V_SCALE)
_V_SCALE_STRIDE, _V_COLUMN = int(Segment.V_SCALE_STRIDE), int(Segment.V_COLUMN)
_Q8 = int(Form.Q8)


@compiled
def score_coded(segment, form, kv_head, tile, tiles, blocks, q, q_stride, scale, out, out_stride, spare, queries):
    """Scores of every query against `tiles` tiles from `tile` on. spare: as large as the queries, `q_stride` too."""
    keys = field(segment, _K) + kv_head * field(segment, _K_STRIDE)
    scales, shift = field(segment, _K_SCALE), kv_head * field(segment, _K_SCALE_STRIDE)
    column = field(segment, _K_COLUMN)
    if form == _Q8:
        if column != 0:
            column += kv_head * q_stride
        for n in range(queries):
            whole_query(q + n * q_stride, column, blocks, spare + n * q_stride)
    tile_bytes, scale_bytes = blocks * LANES * LANES, (blocks + 1) // 2 * VECTOR
    step = TILES if queries > CODED_GROUPS else tiles
    for done in range(0, tiles, step):
        some, here = min(step, tiles - done), tile + done
        n = 0
        while n < queries:
            group = min(queries - n, CODED_GROUPS)
            target = out + n * out_stride + done * VECTOR
            if form == _Q8:
                coded_scores(group, keys + here * tile_bytes, scales + shift + here * scale_bytes, some, blocks,
                             spare + n * q_stride, q_stride, scale, target, out_stride)  # fmt: skip
            else:
                nibble_scores(group, keys, scales + shift, column + shift, here, some, blocks, q + n * q_stride,
                              q_stride, scale, target, out_stride, spare + n * q_stride)  # fmt: skip
            n += group


@compiled
def weigh_coded(
    segment, form, kv_head, tile, tiles, blocks, w, w_stride, acc, acc_stride, den, area, queries, heads, seen, rows
):  # fmt: skip
    """Weighted sums and denominators over `tiles` tiles from `tile` on: weights outside the visible rows are zeros.

    Query n sees the segment's rows below seen + n // heads, at most `rows`.
    area: for each of MAX_QUERIES its sums i32 [PLANES, padded_dim], totals f64 [padded_dim], LEVELS vectors a group of
    32 dims (8 bits: step and unit in the first); then the weights of a block, WEIGHED_GROUPS queries, by group.
    """
    wide, groups = blocks * VECTOR, (blocks + 1) // 2
    sums_bytes = CODED_SUMS * wide
    stride = sums_bytes + groups * LEVELS * VECTOR
    planes, plane_bytes = area + MAX_QUERIES * stride, CODED_BLOCK * PLANES
    values = field(segment, _V) + kv_head * field(segment, _V_STRIDE)
    scales, minima = field(segment, _V_SCALE), field(segment, _V_COLUMN)
    shift = kv_head * field(segment, _V_SCALE_STRIDE)
    column = 0
    if form == _Q8:
        column = minima + kv_head * wide if minima != 0 else 0
        word_bytes, scale_bytes = wide, VECTOR
    else:
        word_bytes, scale_bytes = groups * VECTOR, groups * HALF_BYTES
    values += tile * 4 * word_bytes
    scales += shift + tile * scale_bytes
    minima += shift + tile * scale_bytes
    for n in range(queries):
        own, weights = area + n * stride, w + n * w_stride
        clear(own, CODED_SUMS * blocks + groups * LEVELS)
        if form == _Q8:
            weight_step(weights, scales, tiles, own + sums_bytes)
        else:
            for g in range(groups):
                level_steps(weights, scales + g * HALF_BYTES, minima + g * HALF_BYTES, scale_bytes, tiles,
                            own + sums_bytes + g * LEVELS * VECTOR + TOTALS_BYTES)  # fmt: skip
    for done in range(0, tiles, TILES):
        some, at = min(TILES, tiles - done), done * scale_bytes
        n = 0
        while n < queries:
            group = min(queries - n, WEIGHED_GROUPS) if queries - n != WEIGHED_GROUPS + 1 else 2  # 2 + 2, not 3 + 1
            own, weights = area + n * stride, w + n * w_stride + done * VECTOR
            for m in range(group):
                distance = min(seen + (n + m) // heads, rows) - 1 - (tile + done) * LANES
                given, steps = weights + m * w_stride, own + m * stride + sums_bytes
                target = planes + m * groups * plane_bytes
                if form == _Q8:
                    whole_weights(given, scales + at, some, distance, steps, target)
                else:
                    for g in range(groups):
                        whole_levels(given, scales + at + g * HALF_BYTES, minima + at + g * HALF_BYTES, scale_bytes,
                                     some, distance, steps + g * LEVELS * VECTOR, target + g * plane_bytes)  # fmt: skip
            block, total = 0, den + n * 4
            while block < blocks:
                columns = WIDE if blocks - block >= WIDE else 1
                weigh_words(form, group, columns, values + done * 4 * word_bytes, some, blocks, block, planes,
                            groups * plane_bytes, weights, w_stride, own, stride, total)  # fmt: skip
                total = den + MAX_QUERIES * 4  # a row's weight counts once, with its first columns
                block += columns
            n += group
        if done + some == tiles or (done + some) % FLUSH_TILES == 0:
            for n in range(queries):
                own = area + n * stride
                gather_planes(own, blocks, own + PLANES * wide)
                if form != _Q8:
                    for g in range(groups):
                        gather_levels(own + sums_bytes + g * LEVELS * VECTOR)
    for n in range(queries):
        own, target = area + n * stride, acc + n * acc_stride
        if form == _Q8:
            fold_totals(target, own + PLANES * wide, own + sums_bytes + 4, column, blocks)
        else:
            fold_levels(target, own + PLANES * wide, own + sums_bytes, blocks)
