"""Attention over a layer's stored rows in compiled code: decode and chunks alike, every storage form.

The meaning is `stations/kv/attend.py`'s; the order of every sum is fixed (`docs/kv-cache.md`, *Attention*): a score
is four fma chains over head_dim (dim mod 4) combined (0+1)+(2+3), times the scale; a row's weights join the
denominator and the values one by one in ascending order. Coded rows are summed in whole numbers. Nothing depends on
how many queries share a pass over K and V, nor on where rows lie: queries are computed side by side only to load each
K tile and V row once.

Compiled code works on addresses: a layer's `table` (`stations/kv/table.py`) and one scratch area a thread.
"""

from __future__ import annotations

from stations.kv.table import HEADER_FIELDS, SEGMENT_FIELDS, Form, Header, Segment

from .attention_coded import score_coded, weigh_coded
from .attention_forms import VECTOR
from .attention_ir import (
    GROUP,
    WIDE,
    add_mass,
    ask_for_lines,
    clear,
    divide_row,
    mask_scores,
    scores,
    start_top,
    to_weights,
    weigh,
)
from .compiled import compiled
from .limits import MAX_QUERIES, ROW_BLOCK, coded_area_bytes
from .machine import copy_row, field
from .vector import LANES

TILE_BLOCK = ROW_BLOCK // LANES
WEIGHT_TILES = 16  # tiles whose scores become weights before values to come are asked for
AHEAD_LINES = 2  # of 64 bytes, a tile: about what memory gives meanwhile

_HEAD_DIM, _PADDED_DIM, _SEGMENTS = int(Header.HEAD_DIM), int(Header.PADDED_DIM), int(Header.SEGMENTS)
_FIRST, _ROWS, _K_FORM, _V_FORM = int(Segment.FIRST), int(Segment.ROWS), int(Segment.K_FORM), int(Segment.V_FORM)
_V, _V_STRIDE = int(Segment.V), int(Segment.V_STRIDE)
_Q8, _CODED = int(Form.Q8), (int(Form.Q8), int(Form.Q4))
_coded_area_bytes = compiled(coded_area_bytes)


@compiled
def score_tiles(segment, form, kv_head, tile, tiles, blocks, q, q_stride, scale, out, out_stride, queries):
    """Scores of every query against `tiles` tiles from `tile` on, TILE_BLOCK tiles at a time for all queries."""
    for done in range(0, tiles, TILE_BLOCK):
        some = min(TILE_BLOCK, tiles - done)
        n = 0
        while n < queries:
            group = min(queries - n, GROUP)
            scores(form, group, segment, kv_head, tile + done, some, blocks, q + n * q_stride, q_stride, scale,
                   out + n * out_stride + done * VECTOR, out_stride)  # fmt: skip
            n += group


@compiled
def weigh_rows(segment, form, kv_head, row, rows, blocks, w, w_stride, acc, acc_stride, den, queries):
    """Weighted sums and denominators over `rows` rows from `row` on, ROW_BLOCK rows at a time for all queries."""
    for done in range(0, rows, ROW_BLOCK):
        some = min(ROW_BLOCK, rows - done)
        weights = w + done * 4
        n = 0
        while n < queries:
            group = min(queries - n, GROUP)
            column = 0
            total = den + n * 4
            while column + WIDE <= blocks:
                weigh(form, group, segment, kv_head, row + done, some, column, WIDE, blocks, weights + n * w_stride,
                      w_stride, acc + n * acc_stride + column * VECTOR, acc_stride, total)  # fmt: skip
                column += WIDE
                total = den + MAX_QUERIES * 4  # a row's weight counts once, with its first columns
            for last in range(column, blocks):
                for m in range(n, n + group):
                    total = den + m * 4 if last == 0 else den + MAX_QUERIES * 4
                    weigh(form, 1, segment, kv_head, row + done, some, last, 1, blocks, weights + m * w_stride,
                          w_stride, acc + m * acc_stride + last * VECTOR, acc_stride, total)  # fmt: skip
            n += group


@compiled
def _span(table, index, first, upto):
    """Rows [lo, hi) of segment `index` that lie in stored rows [first, upto), and its address. The last is open."""
    segment = table + (HEADER_FIELDS + index * SEGMENT_FIELDS) * 8
    start = field(segment, _FIRST)
    hi = upto - start
    if index + 1 < field(table, _SEGMENTS):
        hi = min(hi, field(segment, _ROWS))
    return segment, start, max(first - start, 0), hi


@compiled
def _all_weights(table, kv_head, first, upto, weights, stride, tiles, tops, sinks, den, heads, queries):
    """Every query's scores become weights. Memory rests meanwhile: coded values are asked for, piece by piece."""
    ahead, left = 0, 0
    for index in range(field(table, _SEGMENTS)):
        segment, _, lo, hi = _span(table, index, first, upto)
        form = field(segment, _V_FORM)
        if lo < hi and form in _CODED:
            padded_dim = field(table, _PADDED_DIM)
            row_bytes = padded_dim if form == _Q8 else (padded_dim + 31) // 32 * 16
            ahead = field(segment, _V) + kv_head * field(segment, _V_STRIDE) + lo // LANES * LANES * row_bytes
            left = (hi - lo) * row_bytes // VECTOR
    step = WEIGHT_TILES if left > 0 else max(tiles, 1)
    for n in range(queries):
        sink = sinks + n % heads * 4 if sinks != 0 else 0
        for done in range(0, max(tiles, 1), step):  # with no row at all the denominator is started as well
            some = min(step, tiles - done)
            to_weights(weights + n * stride + done * VECTOR, some, tops + n * VECTOR, sink, den + n * 4)
            lines = min(some * AHEAD_LINES, left)
            ask_for_lines(ahead, lines)
            ahead += lines * VECTOR
            left -= lines


@compiled
def _attend_queries(table, kv_head, rows, heads, q, q_row_bytes, q_head_bytes, out, out_row_bytes, out_head_bytes,
                    seen, window, scale, softcap, sinks, mass, mass_row_bytes, scratch):  # fmt: skip
    """At most MAX_QUERIES queries: `heads` heads of `rows` consecutive rows; row i sees seen + i stored rows."""
    head_dim, blocks, segments = field(table, _HEAD_DIM), field(table, _PADDED_DIM) // LANES, field(table, _SEGMENTS)
    wide, queries, upto = blocks * VECTOR, rows * heads, seen + rows - 1
    first = max(seen - window, 0) if window > 0 else 0
    queries_at = (scratch + VECTOR - 1) // VECTOR * VECTOR
    acc = queries_at + MAX_QUERIES * wide
    spare = acc + MAX_QUERIES * wide
    area = spare + MAX_QUERIES * wide
    den = area + _coded_area_bytes(blocks)
    tops = den + 2 * VECTOR
    weights = tops + MAX_QUERIES * VECTOR
    stride = ((upto - first + LANES - 1) // LANES + 2 * segments) * VECTOR
    for n in range(queries):
        row = q + n // heads * q_row_bytes + n % heads * q_head_bytes
        copy_row(queries_at + n * wide, row, head_dim, blocks * LANES)
        start_top(tops + n * VECTOR)
    clear(acc, queries * blocks)
    at = weights
    for index in range(segments):
        segment, start, lo, hi = _span(table, index, first, upto)
        if lo < hi:
            tile = lo // LANES
            tiles = (hi + LANES - 1) // LANES - tile
            form = field(segment, _K_FORM)
            if form in _CODED:
                score_coded(segment, form, kv_head, tile, tiles, blocks, queries_at, wide, scale, at, stride, spare,
                            queries)  # fmt: skip
            else:
                score_tiles(segment, form, kv_head, tile, tiles, blocks, queries_at, wide, scale, at, stride, queries)
            for n in range(queries):
                row_upto = seen + n // heads - start
                row_first = max(row_upto - window, lo) if window > 0 else lo
                mask_scores(at + n * stride, tiles, tile * LANES, row_first, min(row_upto, hi), softcap,
                            tops + n * VECTOR)  # fmt: skip
            at += tiles * VECTOR
    _all_weights(
        table, kv_head, first, upto, weights, stride, (at - weights) // VECTOR, tops, sinks, den, heads, queries
    )
    at = weights
    for index in range(segments):
        segment, start, lo, hi = _span(table, index, first, upto)
        if lo < hi:
            form, tiles = field(segment, _V_FORM), (hi + LANES - 1) // LANES - lo // LANES
            if form in _CODED:
                weigh_coded(segment, form, kv_head, lo // LANES, tiles, blocks, at, stride, acc, wide, den, area,
                            queries, heads, seen - start, hi)  # fmt: skip
            else:
                weigh_rows(segment, form, kv_head, lo, hi - lo, blocks, at + lo % LANES * 4, stride, acc, wide, den,
                           queries)  # fmt: skip
            at += tiles * VECTOR
    for n in range(queries):
        divide_row(acc + n * wide, out + n // heads * out_row_bytes + n % heads * out_head_bytes, head_dim, den + n * 4)
    if mass != 0:
        _add_masses(table, first, upto, heads, queries, weights, stride, den, mass, mass_row_bytes)


@compiled
def _add_masses(table, first, upto, heads, queries, weights, stride, den, mass, mass_row_bytes):
    """Each row's probabilities, head after head, join that row's f32 at `mass`."""
    at = weights
    for index in range(field(table, _SEGMENTS)):
        _, start, lo, hi = _span(table, index, first, upto)
        if lo < hi:
            for n in range(queries):
                target = mass + n // heads * mass_row_bytes + (start + lo) * 4
                add_mass(at + n * stride + lo % LANES * 4, hi - lo, den + n * 4, target)
            at += ((hi + LANES - 1) // LANES - lo // LANES) * VECTOR


@compiled
def attend_rows(table, kv_head, head_lo, head_hi, q, q_row_bytes, q_head_bytes, out, out_row_bytes, out_head_bytes,
                rows, seen, window, scale, softcap, sinks, mass, mass_row_bytes, scratch):  # fmt: skip
    """Query heads [head_lo, head_hi) of one KV head for `rows` consecutive rows of one sequence.

    All addresses are in bytes (int64): `q` and `out` of row 0's head `head_lo`, f32 [head_dim] a head, with strides
    between rows and heads. Row i sees the first seen + i stored rows, at most the last `window` of them (0: all);
    the rows themselves are stored already. `scale` and `softcap` (0: off) are f32; `sinks` is the address of
    head_lo's logit, or 0. `mass`: 0, or the address of f32 [rows, ≥ seen + rows − 1], to which the probabilities of
    these heads are added, one head after the other. `scratch`: `attention_scratch_bytes(seen + rows − 1, padded_dim)`
    bytes that no other thread uses.
    """
    head = head_lo
    while head < head_hi:
        heads = min(head_hi - head, MAX_QUERIES)
        step = MAX_QUERIES // heads
        shift = head - head_lo
        sink = sinks + shift * 4 if sinks != 0 else 0
        for row in range(0, rows, step):
            _attend_queries(table, kv_head, min(step, rows - row), heads,
                            q + row * q_row_bytes + shift * q_head_bytes, q_row_bytes, q_head_bytes,
                            out + row * out_row_bytes + shift * out_head_bytes, out_row_bytes, out_head_bytes,
                            seen + row, window, scale, softcap, sink,
                            mass + row * mass_row_bytes if mass != 0 else 0, mass_row_bytes, scratch)  # fmt: skip
        head += heads
