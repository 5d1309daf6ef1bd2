"""Work on single rows of activations: norm, SwiGLU, sums, and the tiles that products read.

A row is f32 at an address, in whole vectors of 16: areas have room for that, and what lies beyond `width` is ignored
on reading and zero on writing. Orders of operations: `docs/numerics.md`.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...layout import BLOCK_COLS, GROUP_ROWS, weight_format
from .codes import BlockReader, Scale, block_addresses
from .compiled import intrinsic, kernel
from .int8 import quantise_row
from .limits import FORM_INT8
from .machine import I, copy_bytes, copy_row, load_f32, store_f32
from .vector import F32, I32, I64, LANES, V32, VI32, ZERO, Emitter, const_f32, const_i64

_VECTOR_BYTES = LANES * 4


def masked_vector(e: Emitter, base: ir.Value, vector: ir.Value, width: ir.Value) -> ir.Value:
    """Vector number `vector` of a row of `width` values; lanes beyond it are zero."""
    b = e.b
    lanes = ir.Constant(VI32, list(range(LANES)))
    left = b.trunc(b.sub(width, b.mul(vector, const_i64(LANES))), I32)
    value = e.load(base, b.mul(vector, const_i64(_VECTOR_BYTES)), V32, align=4)
    return b.select(b.icmp_signed("<", lanes, e.splat(left)), value, ZERO)


def _vectors(e: Emitter, width: ir.Value) -> ir.Value:
    return e.b.lshr(e.b.add(width, const_i64(LANES - 1)), const_i64(4))


def _each_vector(e: Emitter, width: ir.Value) -> ir.Value:
    return cgutils.for_range(e.b, _vectors(e, width), intp=I64)


@intrinsic
def norm_row(typing, target, source, weight, width, padded, eps):
    """RMS norm: 16 lanes of Σx² by fma, their tree, 1/√(Σ/width + eps), then (x · that) · weight; zeros to `padded`."""

    def codegen(context, builder, signature, args):
        target, source, weight, width, padded, eps = args
        e = Emitter(builder)
        lanes = e.variable(ZERO)
        with _each_vector(e, width) as vector:
            x = masked_vector(e, source, vector.index, width)
            builder.store(e.fma(x, x, builder.load(lanes)), lanes)
        mean = builder.fdiv(e.sum(builder.load(lanes)), builder.uitofp(width, F32))
        root = e.sqrt(builder.fadd(mean, eps))
        inverse = e.splat(builder.fdiv(ir.Constant(F32, 1.0), root))
        with _each_vector(e, width) as vector:
            at = builder.mul(vector.index, const_i64(_VECTOR_BYTES))
            x = masked_vector(e, source, vector.index, width)
            scaled = builder.fmul(x, inverse)
            e.store(builder.fmul(scaled, e.load(weight, at, V32, align=4)), target, at, align=4)
        end = builder.lshr(padded, const_i64(4))
        with cgutils.for_range_slice(builder, _vectors(e, width), end, const_i64(1), I64) as (vector, _):
            e.store(ZERO, target, builder.mul(vector, const_i64(_VECTOR_BYTES)), align=4)
        return context.get_dummy_value()

    return types.void(I, I, I, I, I, types.float32), codegen


@intrinsic
def swiglu_row(typing, target, gate, up, width):
    """target = gate / (1 + exp(−gate)) · up."""

    def codegen(context, builder, signature, args):
        target, gate, up, width = args
        e = Emitter(builder)
        with _each_vector(e, width) as vector:
            at = builder.mul(vector.index, const_i64(_VECTOR_BYTES))
            g = e.load(gate, at, V32, align=4)
            sigmoid = builder.fadd(const_f32(1.0), e.exp(e.negate(g)))
            e.store(builder.fmul(builder.fdiv(g, sigmoid), e.load(up, at, V32, align=4)), target, at, align=4)
        return context.get_dummy_value()

    return types.void(I, I, I, I), codegen


@intrinsic
def add_row(typing, target, base, width):
    """target = base + target."""

    def codegen(context, builder, signature, args):
        target, base, width = args
        e = Emitter(builder)
        with _each_vector(e, width) as vector:
            at = builder.mul(vector.index, const_i64(_VECTOR_BYTES))
            total = builder.fadd(e.load(base, at, V32, align=4), e.load(target, at, V32, align=4))
            e.store(total, target, at, align=4)
        return context.get_dummy_value()

    return types.void(I, I, I), codegen


@intrinsic
def _block_sums(typing, row, num_blocks, out, out_stride):
    """Σx of each block of 32: lane i with lane i + 16, then the tree of 16 lanes."""

    def codegen(context, builder, signature, args):
        row, num_blocks, out, out_stride = args
        e = Emitter(builder)
        with cgutils.for_range(builder, num_blocks, intp=I64) as block:
            at = builder.mul(block.index, const_i64(BLOCK_COLS * 4))
            halves = [e.load(row, builder.add(at, const_i64(i)), V32, align=4) for i in (0, _VECTOR_BYTES)]
            e.store(e.sum(builder.fadd(*halves)), out, builder.mul(block.index, out_stride), align=4)
        return context.get_dummy_value()

    return types.void(I, I, I, I), codegen


@kernel
def place_row(tile, size, index, row, num_blocks):
    """Row `index` of a tile of `size` rows: its values and block sums. `row` holds num_blocks · 32 values."""
    values = num_blocks * BLOCK_COLS
    _block_sums(row, num_blocks, tile + (values * size + index) * 4, size * 4)
    if size == 1:
        if row != tile:
            copy_bytes(tile, row, values * 4)
    else:
        target = tile + index * 4
        for k in range(values):
            store_f32(target + k * size * 4, load_f32(row + k * 4))


@kernel
def prepare_tile(tile, source, source_stride, size, rows, width, num_blocks, weight, eps, spare, form):
    """One tile of `size` rows, of which the first `rows` are source rows, normed when `weight` is an address, and the
    others zeros. `spare`: room for one row of num_blocks · 32 values. `form`: f32 or 8 bits (`limits.py`)."""
    padded = num_blocks * BLOCK_COLS
    for index in range(size):
        row = tile if size == 1 and form != FORM_INT8 else spare
        if index >= rows:
            copy_row(row, spare, 0, padded)
        elif weight != 0:
            norm_row(row, source + index * source_stride, weight, width, padded, eps)
        else:
            copy_row(row, source + index * source_stride, width, padded)
        if form == FORM_INT8:
            quantise_row(tile, size, index, row, num_blocks)
        else:
            place_row(tile, size, index, row, num_blocks)


def make_lookup(kind: str):
    """The embedding lookup of a weight kind, compiled by numba.

    (weights, num_blocks, row, out): matrix row `row` as f32 + 0.0 → out, num_blocks · 32 values; bits as `unpack`.
    """
    fmt = weight_format(kind)
    unit_blocks, unit_bytes = fmt.unit_blocks, fmt.unit_bytes

    @intrinsic
    def lookup_block(typing, group, block, lane, out):
        def codegen(context, builder, signature, args):
            group, index, lane, out = args
            e = Emitter(builder)
            reader = BlockReader(e, kind, *block_addresses(e, kind, group, index))
            scales: list[Scale | None] = [*reader.scales()] or [None]
            lane = builder.trunc(lane, I32)
            step = BLOCK_COLS // len(scales)
            for k in range(BLOCK_COLS):
                value, scale = reader.weights(k), scales[k // step]
                if scale is not None:
                    value = builder.fmul(scale[0], value)
                    value = value if scale[1] is None else builder.fadd(value, scale[1])
                value = builder.fadd(value, ZERO)
                e.store(builder.extract_element(value, lane), out, k * 4, align=4)
            return context.get_dummy_value()

        return types.void(I, I, I, I), codegen

    @kernel
    def lookup(weights, num_blocks, row, out):
        group_bytes = (num_blocks + unit_blocks - 1) // unit_blocks * unit_bytes
        group = weights + row // GROUP_ROWS * group_bytes
        for block in range(num_blocks):
            lookup_block(group, block, row % GROUP_ROWS, out + block * BLOCK_COLS * 4)

    return lookup
