"""y = W x for 1 to many rows: one micro-kernel a weight kind, in which a row's sums never depend on its company.

A micro-kernel takes R rows of x against 16 outputs and a range of blocks: in each block two fma chains (even inputs,
odd inputs), added, then joined to the total by the block's scale and minimum (`docs/numerics.md`, *Products*). R only
says how many rows load a weight together. Rows come in *tiles* that `rows.py` prepares: values [inputs][R], then the
block sums [blocks][R]. Products of 8-bit activations differ in their micro-kernel alone (`int8.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...layout import BLOCK_COLS, NUM_SEGMENTS, weight_format
from .codes import BlockReader, Scale, block_addresses
from .compiled import intrinsic, kernel
from .int8 import emit_int8_tile
from .limits import FORM_F32, FORM_INT8, INT8_BLOCK_BYTES, MAX_TILE_ROWS, TILE_BLOCK_BYTES
from .machine import I, stack_bytes
from .vector import I64, V32, ZERO, Emitter, compile_target, const_i64

_COUNTS = (1, 2, 4, NUM_SEGMENTS)  # segments of one call: the whole sum, or those of an ffn slice
_PARTIAL_BYTES = NUM_SEGMENTS * MAX_TILE_ROWS * 64  # sums of each segment, 16 outputs × rows of a tile


@intrinsic
def tile_rows(typing, left):
    """Rows of the next tile when `left` rows are to come; one more than are left where that saves a tile."""

    def codegen(context, builder, signature, args):
        tiles = sorted(compile_target().row_tiles)
        result = const_i64(tiles[0])
        for size in tiles[1:]:
            enough = size if size - 1 in tiles else size - 1
            result = builder.select(builder.icmp_signed(">=", args[0], const_i64(enough)), const_i64(size), result)
        return result

    return I(I), codegen


def _emit_tile(e: Emitter, kind: str, rows: int, args: list[ir.Value]) -> None:
    """Sums of `rows` rows × 16 outputs over blocks [lo, hi) → out f32 [rows, 16]."""
    group, lo, hi, x, sums, _, out = args
    b = e.b
    totals = [e.variable(ZERO) for _ in range(rows)]
    with cgutils.for_range_slice(b, lo, hi, const_i64(1), intp=I64) as (index, _):
        reader = BlockReader(e, kind, *block_addresses(e, kind, group, index))
        inputs = e.at(x, b.mul(index, const_i64(BLOCK_COLS * rows * 4)))
        scales: list[Scale | None] = [*reader.scales()] or [None]
        step = BLOCK_COLS // len(scales)
        for part, scale in enumerate(scales):
            chains = [[ZERO, ZERO] for _ in range(rows)]
            for k in range(part * step, (part + 1) * step):
                weights = reader.weights(k)
                for row in range(rows):
                    value = e.broadcast(inputs, (k * rows + row) * 4)
                    chains[row][k & 1] = e.fma(weights, value, chains[row][k & 1])
            for row in range(rows):
                total, block = b.load(totals[row]), b.fadd(*chains[row])
                if scale is None:
                    total = b.fadd(total, block)
                else:
                    total = e.fma(scale[0], block, total)
                    if scale[1] is not None:
                        mass = e.broadcast(e.at(sums, b.mul(index, const_i64(rows * 4))), row * 4)
                        total = e.fma(scale[1], mass, total)
                b.store(total, totals[row])
    for row in range(rows):
        e.store(b.load(totals[row]), out, row * 64, align=64)


_EMITTERS = {FORM_F32: _emit_tile, FORM_INT8: emit_int8_tile}
_BLOCK_BYTES = {FORM_F32: TILE_BLOCK_BYTES, FORM_INT8: INT8_BLOCK_BYTES}  # of a row in a tile, sums included
_VALUE_BYTES = {FORM_F32: BLOCK_COLS * 4, FORM_INT8: BLOCK_COLS}  # of these the values


def _tile_intrinsic(kind: str, form: int) -> Callable[..., None]:
    emit_tile = _EMITTERS[form]

    @intrinsic
    def dot_tile(typing, rows, group, lo, hi, x, sums, plane, out):
        """The micro-kernel for a tile of `rows` rows; `rows` is what `tile_rows` gave. `plane`: bytes of one of the
        [blocks][R] arrays at `sums`."""

        def codegen(context, builder, signature, args):
            done = builder.append_basic_block("tile.done")
            switch = builder.switch(args[0], done)
            for rows in compile_target().row_tiles:
                block = builder.append_basic_block(f"tile.{rows}")
                switch.add_case(const_i64(rows), block)
                builder.position_at_end(block)
                emit_tile(Emitter(builder), kind, rows, args[1:])
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        return types.void(*[I] * 8), codegen

    return dot_tile


@intrinsic
def _store_sums(typing, partial, count, rows, y, y_stride):
    """y rows = the sums of 1, 2, 4 or 8 segments, added pairwise: ((0+1)+(2+3))+((4+5)+(6+7)). 16 outputs a row."""

    def codegen(context, builder, signature, args):
        partial, count, rows, y, y_stride = args
        e = Emitter(builder)
        with cgutils.for_range(builder, rows, intp=I64) as row:
            source = e.at(partial, builder.mul(row.index, const_i64(64)))
            target = e.at(y, builder.mul(row.index, y_stride))
            done = builder.append_basic_block("sums.done")
            switch = builder.switch(count, done)
            for size in _COUNTS:
                block = builder.append_basic_block(f"sums.{size}")
                switch.add_case(const_i64(size), block)
                builder.position_at_end(block)
                parts = [e.load(source, s * MAX_TILE_ROWS * 64, V32, align=64) for s in range(size)]
                e.store(e.tree_of(parts), target, 0, align=4)
                builder.branch(done)
            builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(I, I, I, I, I), codegen


def make_product(kind: str, form: int = FORM_F32) -> Any:
    """The product function of a weight kind and a form of activations, compiled by numba.

    (weights, num_blocks, lo, hi, x, rows, y, y_stride, segments, first, end): groups [lo, hi) of the matrix at
    `weights`, which has `num_blocks` blocks a row, times `rows` rows in tiles at `x`; group g's 16 outputs of row r go
    to y + r · y_stride + (g − lo) · 64. The blocks are summed in `segments` contiguous parts (1, or 8), of which
    [first, end) are taken, 1, 2, 4 or 8 of them, and added by a fixed tree; x holds the inputs of these only.
    """
    dot_tile = _tile_intrinsic(kind, form)
    fmt = weight_format(kind)
    unit_blocks, unit_bytes = fmt.unit_blocks, fmt.unit_bytes
    partial_bytes, max_rows = _PARTIAL_BYTES, MAX_TILE_ROWS
    block_bytes, value_bytes = _BLOCK_BYTES[form], _VALUE_BYTES[form]

    @kernel
    def product(weights, num_blocks, lo, hi, x, rows, y, y_stride, segments, first, end):
        group_bytes = (num_blocks + unit_blocks - 1) // unit_blocks * unit_bytes
        start = first * num_blocks // segments
        tile_blocks = end * num_blocks // segments - start
        partial = stack_bytes(partial_bytes)
        row = 0
        while row < rows:
            tile = tile_rows(rows - row)
            live = min(tile, rows - row)
            values = x + row * tile_blocks * block_bytes
            sums = values + (tile_blocks * value_bytes - start * 4) * tile  # where block 0 would lie
            values -= start * value_bytes * tile
            plane = tile_blocks * tile * 4
            target = y + row * y_stride
            for group in range(lo, hi):
                address = weights + group * group_bytes
                for s in range(first, end):
                    block, after = s * num_blocks // segments, (s + 1) * num_blocks // segments
                    dot_tile(tile, address, block, after, values, sums, plane, partial + (s - first) * max_rows * 64)
                _store_sums(partial, end - first, live, target + (group - lo) * 64, y_stride)
            row += tile

    return product
