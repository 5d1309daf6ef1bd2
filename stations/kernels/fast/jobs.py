"""The four kinds of work that can be cut into chunks, and the shape of a chunk.

A job's output is rows of JOB_WIDTH bytes. Chunk c is rows [outer · OUTER_ROWS, …) × bytes [inner · INNER_BYTES, …) of
it, c = outer · INNER + inner, and is computed into any place with any stride: into the output itself, or by a helper
into its own scratch, to be copied (`pool.py`). Cuts never change a bit.
"""

from __future__ import annotations

from ...kv.table import Header
from .compiled import kernel
from .fields import (
    ATTEND_NUM_SPANS,
    ATTEND_Q,
    ATTEND_Q_STRIDE,
    ATTEND_SPANS,
    ATTEND_WORK,
    JOB_COUNT,
    JOB_GATE_UP,
    JOB_INNER,
    JOB_INNER_BYTES,
    JOB_KIND,
    JOB_OUT,
    JOB_OUT_STRIDE,
    JOB_OUTER_ROWS,
    JOB_PREPARE,
    JOB_PRODUCT,
    JOB_ROWS,
    JOB_WIDTH,
    PART_COLUMN,
    PART_FIELDS,
    PART_FORM,
    PART_GROUPS,
    PART_KERNEL,
    PART_WEIGHTS,
    PREPARE_BLOCKS,
    PREPARE_EPS,
    PREPARE_FORM,
    PREPARE_NORM,
    PREPARE_ROWS,
    PREPARE_SOURCE,
    PREPARE_STRIDE,
    PREPARE_WIDTH,
    PRODUCT_BASE,
    PRODUCT_BASE_STRIDE,
    PRODUCT_BLOCKS,
    PRODUCT_END_SEGMENT,
    PRODUCT_FIRST_SEGMENT,
    PRODUCT_INT8_TILES,
    PRODUCT_NUM_PARTS,
    PRODUCT_PARTS,
    PRODUCT_SEGMENTS,
    PRODUCT_TILE_BLOCKS,
    PRODUCT_TILES,
    SPAN_FIELDS,
    SPAN_ROWS,
    SPAN_TABLE,
    WORK_ATTEND,
    WORK_HEAD_DIM,
    WORK_HEADS,
    WORK_KV_HEADS,
    WORK_SCALE,
)
from .limits import CHUNK_BYTES, FORM_INT8, INT8_BLOCK_BYTES, TILE_BLOCK_BYTES
from .machine import call_attend, call_product, copy_bytes, field, load_f32, set_field
from .product import tile_rows
from .rows import add_row, prepare_tile, swiglu_row

_SEQ = int(Header.SEQ)


@kernel
def set_output(job, kind, rows, out, out_stride, width, outer_rows, inner_bytes):
    """Describe a job's output; the number of chunks follows."""
    inner = (width + inner_bytes - 1) // inner_bytes
    set_field(job, JOB_KIND, kind)
    set_field(job, JOB_ROWS, rows)
    set_field(job, JOB_OUT, out)
    set_field(job, JOB_OUT_STRIDE, out_stride)
    set_field(job, JOB_WIDTH, width)
    set_field(job, JOB_OUTER_ROWS, outer_rows)
    set_field(job, JOB_INNER, inner)
    set_field(job, JOB_INNER_BYTES, inner_bytes)
    set_field(job, JOB_COUNT, (rows + outer_rows - 1) // outer_rows * inner)


@kernel
def run_chunk(job, chunk, direct, stage, scratch):
    """Compute a chunk into the output (`direct` 1) or into `stage`, rows packed. `scratch`: this thread's own."""
    inner, outer = chunk % field(job, JOB_INNER), chunk // field(job, JOB_INNER)
    row, column = outer * field(job, JOB_OUTER_ROWS), inner * field(job, JOB_INNER_BYTES)
    rows = min(field(job, JOB_OUTER_ROWS), field(job, JOB_ROWS) - row)
    width = min(field(job, JOB_INNER_BYTES), field(job, JOB_WIDTH) - column)
    target, stride = stage, width
    if direct:
        stride = field(job, JOB_OUT_STRIDE)
        target = field(job, JOB_OUT) + row * stride + column
    kind = field(job, JOB_KIND)
    if kind == JOB_PRODUCT:
        _product(job, row, rows, column, width, target, stride)
    elif kind == JOB_GATE_UP:
        _gate_up(job, row, rows, column, width, target, stride, scratch)
    elif kind == JOB_PREPARE:
        _prepare(job, row, target, scratch)
    else:
        _attend(job, row, rows, inner, target, stride, scratch)


@kernel
def copy_chunk(job, chunk, stage):
    """Copy a chunk that was computed into `stage` to its place in the output."""
    inner, outer = chunk % field(job, JOB_INNER), chunk // field(job, JOB_INNER)
    row, column = outer * field(job, JOB_OUTER_ROWS), inner * field(job, JOB_INNER_BYTES)
    rows = min(field(job, JOB_OUTER_ROWS), field(job, JOB_ROWS) - row)
    width = min(field(job, JOB_INNER_BYTES), field(job, JOB_WIDTH) - column)
    stride = field(job, JOB_OUT_STRIDE)
    target = field(job, JOB_OUT) + row * stride + column
    for index in range(rows):
        copy_bytes(target + index * stride, stage + index * width, width)


@kernel
def _prepare(job, row, target, scratch):
    """Tiles of rows [row, row + OUTER_ROWS), as many as there are."""
    real, blocks = field(job, PREPARE_ROWS), field(job, PREPARE_BLOCKS)
    end = min(row + field(job, JOB_OUTER_ROWS), real)
    stride = field(job, PREPARE_STRIDE)
    eps = load_f32(job + PREPARE_EPS * 8)
    while row < end:
        size = tile_rows(real - row)
        prepare_tile(target, field(job, PREPARE_SOURCE) + row * stride, stride, size, min(size, real - row),
                     field(job, PREPARE_WIDTH), blocks, field(job, PREPARE_NORM), eps, scratch,
                     field(job, PREPARE_FORM))  # fmt: skip
        target += size * field(job, JOB_WIDTH)
        row += size


@kernel
def _tiles(job, part, row):
    """Where the tiles of rows from `row` on begin, in the form that the part's kernel reads."""
    row_blocks = row * field(job, PRODUCT_TILE_BLOCKS)
    if field(part, PART_FORM) == FORM_INT8:
        return field(job, PRODUCT_INT8_TILES) + row_blocks * INT8_BLOCK_BYTES
    return field(job, PRODUCT_TILES) + row_blocks * TILE_BLOCK_BYTES


@kernel
def _product(job, row, rows, column, width, target, stride):
    """Groups of the parts that lie in [column, column + width), then the base row added where there is one."""
    blocks = field(job, PRODUCT_BLOCKS)
    for index in range(field(job, PRODUCT_NUM_PARTS)):
        part = field(job, PRODUCT_PARTS) + index * PART_FIELDS * 8
        start = field(part, PART_COLUMN)
        lo = max(column - start, 0) // 64
        hi = min((column + width - start) // 64, field(part, PART_GROUPS))
        if lo < hi:
            tiles = _tiles(job, part, row)
            call_product(field(part, PART_KERNEL), field(part, PART_WEIGHTS), blocks, lo, hi, tiles, rows,
                         target + start + lo * 64 - column, stride, field(job, PRODUCT_SEGMENTS),
                         field(job, PRODUCT_FIRST_SEGMENT), field(job, PRODUCT_END_SEGMENT))  # fmt: skip
    base = field(job, PRODUCT_BASE)
    if base != 0:
        base_stride = field(job, PRODUCT_BASE_STRIDE)
        for index in range(rows):
            add_row(target + index * stride, base + (row + index) * base_stride + column, width // 4)


@kernel
def _gate_up(job, row, rows, column, width, target, stride, scratch):
    """u = silu(gate) · up for the columns [column, column + width); gate and up go through scratch."""
    blocks = field(job, PRODUCT_BLOCKS)
    lo, hi = column // 64, (column + width) // 64
    for index in range(2):
        part = field(job, PRODUCT_PARTS) + index * PART_FIELDS * 8
        tiles = _tiles(job, part, row)
        call_product(field(part, PART_KERNEL), field(part, PART_WEIGHTS), blocks, lo, hi, tiles, rows,
                     scratch + index * CHUNK_BYTES, width, 1, 0, 1)  # fmt: skip
    for index in range(rows):
        gate = scratch + index * width
        swiglu_row(target + index * stride, gate, gate + CHUNK_BYTES, width // 4)


@kernel
def _attend(job, row, rows, kv_head, target, stride, scratch):
    """Attention of rows [row, row + rows), of one KV head's query heads."""
    work = field(job, ATTEND_WORK)
    group = field(work, WORK_HEADS) // field(work, WORK_KV_HEADS)
    head_bytes = field(work, WORK_HEAD_DIM) * 4
    q_stride = field(job, ATTEND_Q_STRIDE)
    first = 0
    for index in range(field(job, ATTEND_NUM_SPANS)):
        span = field(job, ATTEND_SPANS) + index * SPAN_FIELDS * 8
        count = field(span, SPAN_ROWS)
        lo, hi = max(row, first), min(row + rows, first + count)
        if lo < hi:
            table = field(span, SPAN_TABLE)
            q = field(job, ATTEND_Q) + lo * q_stride + kv_head * group * head_bytes
            out = target + (lo - row) * stride
            seen = field(table, _SEQ) + lo - first + 1
            call_attend(field(work, WORK_ATTEND), table, kv_head, group, q, q_stride, out, stride, hi - lo, seen,
                        work + WORK_SCALE * 8, scratch)  # fmt: skip
        first += count
