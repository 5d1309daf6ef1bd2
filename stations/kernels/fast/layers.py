"""The roles as compiled code: whole batches, and whole ranges of layers, in one call from Python.

`execute(work, call)` carries out one CALL record on a backend's WORK record (`fields.py`). Rows are f32; activations
live in the work areas, in rows padded to whole blocks, so that no kernel looks at the ends of arrays.
"""

from __future__ import annotations

import numpy as np

from ...kv.table import Header
from ...layout import NUM_SEGMENTS
from . import fields as f
from .compiled import kernel
from .jobs import set_output
from .limits import (
    ATTEND_ROWS,
    CHUNK_BYTES,
    FORM_F32,
    FORM_INT8,
    INT8_BLOCK_BYTES,
    MAX_QUERIES,
    MAX_TILE_ROWS,
    ROWS_AT_ONCE,
    TILE_BLOCK_BYTES,
)
from .machine import atomic_store, copy_row, field, load_f32, set_field
from .pool import help_out, run_job, start_pool, wake_helpers
from .product import tile_rows
from .rope import rotate_and_store
from .rows import norm_row

# typed constants for arguments: numba would compile a callee once for each literal
_NONE, _WHOLE, _SEGMENTED = np.int64(0), np.int64(1), np.int64(NUM_SEGMENTS)
_PAIR = np.int64(2)  # gate and up
_F32, _INT8 = np.int64(FORM_F32), np.int64(FORM_INT8)
_PRODUCT, _GATE_UP = np.int64(f.JOB_PRODUCT), np.int64(f.JOB_GATE_UP)
_PREPARE, _ATTEND = np.int64(f.JOB_PREPARE), np.int64(f.JOB_ATTEND)
_ACTIVE, _QUIT = np.int64(f.POOL_ACTIVE), np.int64(f.POOL_QUIT)
_TILE_ROWS, _ROWS_AT_ONCE = np.int64(MAX_TILE_ROWS), np.int64(ROWS_AT_ONCE)
_MASS, _TRACE, _OVERLAY = int(Header.MASS), int(Header.TRACE), int(Header.OVERLAY)
SHARE_MACS = 1 << 19  # a chunk is at most so many multiply-adds where threads share a job: 10 to 20 µs
SHARES = 2  # chunks a thread of a row's product: each costs 1 µs, which 3 or 4 cost more than an idle end saves


@kernel
def _run(work):
    scratch = field(work, f.WORK_SCRATCH)
    run_job(field(work, f.WORK_POOL), scratch + field(work, f.WORK_STAGE_BYTES), scratch)


@kernel
def _job(work):
    return field(work, f.WORK_POOL) + f.POOL_JOB * 8


@kernel
def _groups_per_chunk(work, groups, blocks, rows):
    """Groups of 16 outputs in one chunk of a product."""
    at_once = min(rows, ROWS_AT_ONCE)
    size = max(CHUNK_BYTES // (64 * at_once), 1)
    helpers = field(field(work, f.WORK_POOL), f.POOL_HELPERS)
    if helpers > 0:
        size = min(size, max(SHARE_MACS // (blocks * 512 * at_once), 1), max(groups // (SHARES * (helpers + 1)), 1))
    return max(min(size, groups), groups // f.MAX_CHUNKS + 1)


@kernel
def _prepare(work, source, stride, rows, width, norm, parts, num_parts):
    """Rows → tiles in the forms that the parts read, normed when `norm` is an address. Returns the blocks a row."""
    blocks = (width + 31) // 32
    num_int8 = 0
    for index in range(num_parts):
        num_int8 += field(parts + index * f.PART_FIELDS * 8, f.PART_FORM)  # 1 for int8, 0 for f32
    if num_int8 < num_parts:
        tiles, block_bytes = field(work, f.WORK_TILES), TILE_BLOCK_BYTES
        _prepare_form(work, source, stride, rows, width, norm, blocks, _F32, tiles, block_bytes)
    if num_int8 > 0:
        tiles, block_bytes = field(work, f.WORK_INT8_TILES), INT8_BLOCK_BYTES
        _prepare_form(work, source, stride, rows, width, norm, blocks, _INT8, tiles, block_bytes)
    return blocks


@kernel
def _prepare_form(work, source, stride, rows, width, norm, blocks, form, tiles, block_bytes):
    job = _job(work)
    padded = 0
    while padded < rows:
        padded += tile_rows(rows - padded)
    row_bytes = blocks * block_bytes
    set_output(job, _PREPARE, padded, tiles, row_bytes, row_bytes, _TILE_ROWS, row_bytes)
    set_field(job, f.PREPARE_SOURCE, source)
    set_field(job, f.PREPARE_STRIDE, stride)
    set_field(job, f.PREPARE_ROWS, rows)
    set_field(job, f.PREPARE_WIDTH, width)
    set_field(job, f.PREPARE_BLOCKS, blocks)
    set_field(job, f.PREPARE_NORM, norm)
    set_field(job, f.PREPARE_EPS, field(work, f.WORK_EPS))
    set_field(job, f.PREPARE_FORM, form)
    _run(work)


@kernel
def _product(work, kind, parts, num_parts, blocks, rows, out, stride, segments, base, base_stride):
    """Products of whole rows with a list of parts, side by side in `out`; `base` rows are added where it is not 0."""
    _product_of_segments(work, kind, parts, num_parts, blocks, rows, out, stride, segments, _NONE, segments, base,
                         base_stride)  # fmt: skip


@kernel
def _product_of_segments(
    work, kind, parts, num_parts, blocks, rows, out, stride, segments, first, end, base, base_stride
):
    """The same over segments [first, end) of the rows, whose blocks the tiles hold."""
    job = _job(work)
    last = parts + (num_parts - 1) * f.PART_FIELDS * 8
    groups = field(last, f.PART_COLUMN) // 64 + field(last, f.PART_GROUPS)
    tile_blocks = end * blocks // segments - first * blocks // segments
    chunk = _groups_per_chunk(work, groups, tile_blocks, rows)
    set_output(job, kind, rows, out, stride, groups * 64, _ROWS_AT_ONCE, chunk * 64)
    set_field(job, f.PRODUCT_PARTS, parts)
    set_field(job, f.PRODUCT_NUM_PARTS, num_parts)
    set_field(job, f.PRODUCT_BLOCKS, blocks)
    set_field(job, f.PRODUCT_TILES, field(work, f.WORK_TILES))
    set_field(job, f.PRODUCT_INT8_TILES, field(work, f.WORK_INT8_TILES))
    set_field(job, f.PRODUCT_TILE_BLOCKS, tile_blocks)
    set_field(job, f.PRODUCT_SEGMENTS, segments)
    set_field(job, f.PRODUCT_FIRST_SEGMENT, first)
    set_field(job, f.PRODUCT_END_SEGMENT, end)
    set_field(job, f.PRODUCT_BASE, base)
    set_field(job, f.PRODUCT_BASE_STRIDE, base_stride)
    _run(work)


@kernel
def _store_keys(work, spans, num_spans, qkv):
    """Rotate Q and K of every row and store K and V in the spans' caches."""
    stride, table = field(work, f.WORK_QKV_STRIDE), field(work, f.WORK_ROPE_TABLE)
    heads, kv_heads, head_dim = field(work, f.WORK_HEADS), field(work, f.WORK_KV_HEADS), field(work, f.WORK_HEAD_DIM)
    rope_dim = field(work, f.WORK_ROPE_DIM)
    row = qkv
    for index in range(num_spans):
        span = spans + index * f.SPAN_FIELDS * 8
        for i in range(field(span, f.SPAN_ROWS)):
            angles = table + (field(span, f.SPAN_FIRST) + i) * rope_dim * 4
            rotate_and_store(row, row + field(work, f.WORK_K_COLUMN), row + field(work, f.WORK_V_COLUMN), heads,
                             kv_heads, head_dim, rope_dim, angles, field(span, f.SPAN_TABLE), i)  # fmt: skip
            row += stride


@kernel
def _attend(work, spans, num_spans, rows):
    """Attention of all rows over their caches → WORK_HEADS_OUT."""
    job = _job(work)
    group = field(work, f.WORK_HEADS) // field(work, f.WORK_KV_HEADS)
    width = field(work, f.WORK_HEADS) * field(work, f.WORK_HEAD_DIM) * 4
    together = max(MAX_QUERIES // group, 1)
    outer = together * max(ATTEND_ROWS // together, 1)
    set_output(job, _ATTEND, rows, field(work, f.WORK_HEADS_OUT), field(work, f.WORK_HEADS_STRIDE), width, outer,
               width // field(work, f.WORK_KV_HEADS))  # fmt: skip
    set_field(job, f.ATTEND_WORK, work)
    set_field(job, f.ATTEND_Q, field(work, f.WORK_QKV))
    set_field(job, f.ATTEND_Q_STRIDE, field(work, f.WORK_QKV_STRIDE))
    set_field(job, f.ATTEND_SPANS, spans)
    set_field(job, f.ATTEND_NUM_SPANS, num_spans)
    pool = field(work, f.WORK_POOL)
    helpers = field(pool, f.POOL_HELPERS)
    if _changes_caches(spans, num_spans):
        set_field(pool, f.POOL_HELPERS, 0)
    _run(work)
    set_field(pool, f.POOL_HELPERS, helpers)


@kernel
def _changes_caches(spans, num_spans):
    """Whether attending adds to a cache (masses, queries, a sealed layer): a late helper would do it a second time."""
    for index in range(num_spans):
        table = field(spans + index * f.SPAN_FIELDS * 8, f.SPAN_TABLE)
        if field(table, _MASS) != 0 or field(table, _TRACE) != 0 or field(table, _OVERLAY) != 0:
            return True
    return False


@kernel
def _attn(work, layer, rows, spans, num_spans, x, x_stride, h, h_stride, base):
    """h = base + attn(norm₁ x); `base`, strided like x, is x itself or 0 for attention alone."""
    hidden, qkv = field(work, f.WORK_HIDDEN), field(work, f.WORK_QKV)
    parts, num_parts = field(layer, f.LAYER_QKV), field(layer, f.LAYER_QKV_PARTS)
    blocks = _prepare(work, x, x_stride, rows, hidden, field(layer, f.LAYER_NORM1), parts, num_parts)
    stride = field(work, f.WORK_QKV_STRIDE)
    _product(work, _PRODUCT, parts, num_parts, blocks, rows, qkv, stride, _WHOLE, _NONE, _NONE)
    _store_keys(work, spans, num_spans, qkv)
    _attend(work, spans, num_spans, rows)
    heads_width = field(work, f.WORK_HEADS) * field(work, f.WORK_HEAD_DIM)
    output, heads_stride = field(layer, f.LAYER_OUTPUT), field(work, f.WORK_HEADS_STRIDE)
    blocks = _prepare(work, field(work, f.WORK_HEADS_OUT), heads_stride, rows, heads_width, _NONE, output, _WHOLE)
    _product(work, _PRODUCT, output, _WHOLE, blocks, rows, h, h_stride, _WHOLE, base, x_stride)


@kernel
def _gate_up(work, layer, rows, source, source_stride, norm, u, u_stride):
    """u = silu(n W_gate) ⊙ (n W_up), n = `source` normed when `norm` is an address."""
    parts = field(layer, f.LAYER_GATE_UP)
    blocks = _prepare(work, source, source_stride, rows, field(work, f.WORK_HIDDEN), norm, parts, _PAIR)
    _product(work, _GATE_UP, parts, _WHOLE, blocks, rows, u, u_stride, _WHOLE, _NONE, _NONE)


@kernel
def _down(work, layer, rows, h, h_stride, u, u_stride, out, out_stride):
    """out = h + u W_down, the product in 8 segments; without h where that is 0."""
    parts = field(layer, f.LAYER_DOWN)
    blocks = _prepare(work, u, u_stride, rows, field(work, f.WORK_FFN), _NONE, parts, _WHOLE)
    _product(work, _PRODUCT, parts, _WHOLE, blocks, rows, out, out_stride, _SEGMENTED, h,
             h_stride)  # fmt: skip


@kernel
def _take_in(work, source, width, rows, area, stride):
    """Rows of a Python array (any alignment, no padding) → a work area."""
    for row in range(rows):
        copy_row(area + row * stride, source + row * width * 4, width, stride // 4)


@kernel
def _call_attn(work, call):
    rows, layer = field(call, f.CALL_ROWS), field(field(call, f.CALL_LAYERS), 0)
    hidden, stride = field(work, f.WORK_HIDDEN), field(work, f.WORK_X_STRIDE)
    x, h, out_stride = field(work, f.WORK_X), field(call, f.CALL_OUT), field(call, f.CALL_OUT_STRIDE)
    _take_in(work, field(call, f.CALL_X), hidden, rows, x, stride)
    spans, num_spans = field(field(call, f.CALL_SPANS), 0), field(call, f.CALL_NUM_SPANS)
    n = field(call, f.CALL_OUT2)
    _attn(work, layer, rows, spans, num_spans, x, stride, h, out_stride, x if n != 0 else _NONE)
    if n != 0:
        _norm2(work, layer, rows, h, out_stride, n, out_stride)


@kernel
def _norm2(work, layer, rows, x, stride, n, n_stride):
    """n = norm₂ x, rows padded with zeros."""
    hidden, eps = field(work, f.WORK_HIDDEN), load_f32(work + f.WORK_EPS * 8)
    for row in range(rows):
        norm_row(n + row * n_stride, x + row * stride, field(layer, f.LAYER_NORM2), hidden, n_stride // 4, eps)


@kernel
def _call_norm(work, call):
    rows, layer = field(call, f.CALL_ROWS), field(field(call, f.CALL_LAYERS), 0)
    x, stride = field(work, f.WORK_X), field(work, f.WORK_X_STRIDE)
    _take_in(work, field(call, f.CALL_X), field(work, f.WORK_HIDDEN), rows, x, stride)
    _norm2(work, layer, rows, x, stride, field(call, f.CALL_OUT), field(call, f.CALL_OUT_STRIDE))


@kernel
def _call_gate_up(work, call):
    rows, stride = field(call, f.CALL_ROWS), field(work, f.WORK_X_STRIDE)
    layer, x = field(field(call, f.CALL_LAYERS), 0), field(work, f.WORK_X)
    _take_in(work, field(call, f.CALL_X), field(work, f.WORK_HIDDEN), rows, x, stride)
    _gate_up(work, layer, rows, x, stride, _NONE, field(call, f.CALL_OUT), field(call, f.CALL_OUT_STRIDE))


@kernel
def _call_down(work, call):
    """CALL_X is u and CALL_X2 h; 0: the product alone."""
    rows, stride, u_stride = field(call, f.CALL_ROWS), field(work, f.WORK_X_STRIDE), field(work, f.WORK_U_STRIDE)
    layer, h, u = field(field(call, f.CALL_LAYERS), 0), _NONE, field(work, f.WORK_U)
    _take_in(work, field(call, f.CALL_X), field(work, f.WORK_FFN), rows, u, u_stride)
    if field(call, f.CALL_X2) != 0:
        h = field(work, f.WORK_X)
        _take_in(work, field(call, f.CALL_X2), field(work, f.WORK_HIDDEN), rows, h, stride)
    _down(work, layer, rows, h, stride, u, u_stride, field(call, f.CALL_OUT), field(call, f.CALL_OUT_STRIDE))


@kernel
def _call_ffn(work, call):
    """A slice of the ffn: u of its columns, then its segments of u W_down. CALL_PARTS: its rows of gate and up."""
    rows, stride, u_stride = field(call, f.CALL_ROWS), field(work, f.WORK_X_STRIDE), field(work, f.WORK_U_STRIDE)
    layer, x, u = field(field(call, f.CALL_LAYERS), 0), field(work, f.WORK_X), field(work, f.WORK_U)
    parts, down = field(call, f.CALL_PARTS), field(layer, f.LAYER_DOWN)
    _take_in(work, field(call, f.CALL_X), field(work, f.WORK_HIDDEN), rows, x, stride)
    blocks = _prepare(work, x, stride, rows, field(work, f.WORK_HIDDEN), _NONE, parts, _PAIR)
    _product(work, _GATE_UP, parts, _WHOLE, blocks, rows, u, u_stride, _WHOLE, _NONE, _NONE)
    _prepare(work, u, u_stride, rows, field(call, f.CALL_WIDTH), _NONE, down, _WHOLE)
    blocks = (field(work, f.WORK_FFN) + 31) // 32
    _product_of_segments(work, _PRODUCT, down, _WHOLE, blocks, rows, field(call, f.CALL_OUT),
                         field(call, f.CALL_OUT_STRIDE), _SEGMENTED, field(call, f.CALL_FIRST_SEGMENT),
                         field(call, f.CALL_END_SEGMENT), _NONE, _NONE)  # fmt: skip


@kernel
def _call_block(work, call):
    rows, stride, u_stride = field(call, f.CALL_ROWS), field(work, f.WORK_X_STRIDE), field(work, f.WORK_U_STRIDE)
    x, h, u = field(work, f.WORK_X), field(work, f.WORK_H), field(work, f.WORK_U)
    _take_in(work, field(call, f.CALL_X), field(work, f.WORK_HIDDEN), rows, x, stride)
    layers, spans, count = field(call, f.CALL_LAYERS), field(call, f.CALL_SPANS), field(call, f.CALL_NUM_LAYERS)
    for index in range(count):
        layer = field(layers, index)
        _attn(work, layer, rows, field(spans, index), field(call, f.CALL_NUM_SPANS), x, stride, h, stride, x)
        _gate_up(work, layer, rows, h, stride, field(layer, f.LAYER_NORM2), u, u_stride)
        out, out_stride = x, stride
        if index + 1 == count:
            out, out_stride = field(call, f.CALL_OUT), field(call, f.CALL_OUT_STRIDE)
        _down(work, layer, rows, h, stride, u, u_stride, out, out_stride)


@kernel
def _call_head(work, call):
    rows, hidden, stride = field(call, f.CALL_ROWS), field(work, f.WORK_HIDDEN), field(work, f.WORK_X_STRIDE)
    x, parts = field(work, f.WORK_X), field(call, f.CALL_PARTS)
    _take_in(work, field(call, f.CALL_X), hidden, rows, x, stride)
    blocks = _prepare(work, x, stride, rows, hidden, field(call, f.CALL_NORM), parts, _WHOLE)
    _product(work, _PRODUCT, parts, _WHOLE, blocks, rows, field(call, f.CALL_OUT),
             field(call, f.CALL_OUT_STRIDE), _WHOLE, _NONE, _NONE)  # fmt: skip


@kernel
def execute(work, call):
    """Carry out one call; where POOL_HELPERS says so, helpers take part in it."""
    op = field(call, f.CALL_OP)
    pool = field(work, f.WORK_POOL)
    if op == f.OP_START:
        start_pool(pool)
    elif op == f.OP_QUIT:
        wake_helpers(pool, _QUIT)
    elif op == f.OP_HELP:
        help_out(pool, field(call, f.CALL_ROWS))
    else:
        if field(pool, f.POOL_HELPERS) > 0:
            wake_helpers(pool, _ACTIVE)
        _compute(work, call, op)
        atomic_store(pool + f.POOL_ACTIVE * 8, 0)


@kernel
def _compute(work, call, op):
    if op == f.OP_ATTN:
        _call_attn(work, call)
    elif op == f.OP_GATE_UP:
        _call_gate_up(work, call)
    elif op == f.OP_DOWN:
        _call_down(work, call)
    elif op == f.OP_FFN:
        _call_ffn(work, call)
    elif op == f.OP_BLOCK:
        _call_block(work, call)
    elif op == f.OP_HEAD:
        _call_head(work, call)
    elif op == f.OP_NORM:
        _call_norm(work, call)
