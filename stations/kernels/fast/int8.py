"""Activations in 8 bits, the `fast-int8` set: quantised rows, and the micro-kernel that multiplies them as integers.

A row's block of 32 inputs becomes codes of −127 … 127 and one scale; the sum of code products is an exact integer,
whatever instruction adds it up, so a row's bits depend neither on its company nor on the CPU (`docs/numerics.md`).
A tile of R rows: codes [blocks][8 words of 4 inputs][R], then four planes [blocks][R]: scale f32, scale · Σ codes f32,
Σ codes i32, Σ codes of inputs 0 to 15 i32.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...layout import BLOCK_COLS
from .codes import ZERO_POINT, BlockReader, block_addresses
from .compiled import intrinsic
from .machine import I
from .vector import F32, I8, I16, I32, I64, LANES, V32, VI8, VI32, ZERO, Emitter, const_i32, const_i64

_WORDS = BLOCK_COLS // 4  # of 4 inputs, in a block
_LARGEST_CODE = 127.0
_LEAST_PEAK_BITS = 0x0D800000  # 2⁻¹⁰⁰: a block below it counts as zeros; of tiny scales the inverse overflows
_INFINITY_BITS = 0x7F800000
_NAN = float("nan")
_BYTES = ir.VectorType(I8, 4 * LANES)
_HALF_BYTES, _HALF_WORDS, _HALF_I16 = (ir.VectorType(t, n) for t, n in ((I8, 32), (I32, 8), (I16, 16)))
_V_I16 = ir.VectorType(I16, 2 * LANES)


def _dot_of_halves(e: Emitter, total: ir.Value, codes: ir.Value, x: ir.Value, name: str) -> ir.Value:
    """`dot4` by an instruction on 8 words, as its name says with or without adding to `total`."""
    b = e.b
    halves = []
    for half in range(2):
        chosen = ir.Constant(ir.VectorType(I32, 8), list(range(8 * half, 8 * half + 8)))
        parts = [b.shuffle_vector(v, ir.Constant(VI32, ir.Undefined), chosen) for v in (total, codes, x)]
        if name == "vpdpbusd":
            halves.append(e.call("llvm.x86.avx512.vpdpbusd.256", _HALF_WORDS, *parts))
            continue
        pairs = e.call("llvm.x86.avx2.pmadd.ub.sw", _HALF_I16, *(b.bitcast(p, _HALF_BYTES) for p in parts[1:]))
        ones = ir.Constant(_HALF_I16, [1] * 16)
        halves.append(b.add(parts[0], e.call("llvm.x86.avx2.pmadd.wd", _HALF_WORDS, pairs, ones)))
    return b.shuffle_vector(*halves, ir.Constant(VI32, list(range(LANES))))


def dot4(e: Emitter, total: ir.Value, codes: ir.Value, x: ir.Value, code_bits: int) -> ir.Value:
    """total + Σ of the 4 products of bytes in each lane, i32: `codes` unsigned, below 2^code_bits, `x` −127 … 127."""
    b, target = e.b, e.target
    if target.has_dot_product:
        return e.call("llvm.x86.avx512.vpdpbusd.512", VI32, total, codes, x)
    if target.has_narrow_dot_product:
        return _dot_of_halves(e, total, codes, x, "vpdpbusd")
    if target.is_x86 and target.has("avx2"):
        if code_bits < 8:
            return _dot_of_halves(e, total, codes, x, "pmadd")
        # two products of 8 bits do not fit 16: the top bit goes on its own
        total = _dot_of_halves(e, total, b.and_(codes, const_i32(0x7F7F7F7F)), x, "pmadd")
        return _dot_of_halves(e, total, b.and_(codes, const_i32(-0x7F7F7F80)), x, "pmadd")
    for shift in (0, 8):  # bytes 0 and 2, then 1 and 3, as 16-bit numbers
        wide = ir.Constant(_V_I16, [8] * 32)
        left = b.lshr(b.bitcast(codes, _V_I16), wide) if shift else b.and_(codes, const_i32(0x00FF00FF))
        right = b.bitcast(x, _V_I16) if shift else b.shl(b.bitcast(x, _V_I16), wide)
        total = b.add(total, _sum_of_pairs(e, b.bitcast(left, _V_I16), b.ashr(right, wide)))
    return total


def _sum_of_pairs(e: Emitter, left: ir.Value, right: ir.Value) -> ir.Value:
    """Products of 32 numbers of 16 bits, those of a word added: what LLVM knows as one instruction of most CPUs."""
    b = e.b
    wide = ir.VectorType(I32, 2 * LANES)
    products = b.mul(b.sext(left, wide), b.sext(right, wide))
    undefined = ir.Constant(wide, ir.Undefined)
    return b.add(
        *(b.shuffle_vector(products, undefined, ir.Constant(VI32, list(range(i, 2 * LANES, 2)))) for i in range(2))
    )


def emit_int8_tile(e: Emitter, kind: str, rows: int, args: list[ir.Value]) -> None:
    """Sums of `rows` quantised rows × 16 outputs over blocks [lo, hi) → out f32 [rows, 16]."""
    group, lo, hi, x, planes, plane, out = args
    b = e.b
    zero = ZERO_POINT.get(kind, 0)
    totals = [e.variable(ZERO) for _ in range(rows)]
    with cgutils.for_range_slice(b, lo, hi, const_i64(1), intp=I64) as (index, _):
        reader = BlockReader(e, kind, *block_addresses(e, kind, group, index))
        inputs = e.at(x, b.mul(index, const_i64(BLOCK_COLS * rows)))
        numbers = [e.at(planes, b.add(b.mul(index, const_i64(rows * 4)), b.mul(plane, const_i64(i)))) for i in range(4)]
        scales = reader.scales()
        step = _WORDS // len(scales)
        for part, (scale, minimum) in enumerate(scales):
            dots = [const_i32(0)] * rows
            for i in range(part * step, (part + 1) * step):
                codes = reader.codes(i)
                for row in range(rows):
                    word = e.broadcast(inputs, (i * rows + row) * 4, I32)
                    dots[row] = dot4(e, dots[row], codes, word, reader.code_bits)
            for row in range(rows):
                dot = dots[row]
                if zero:
                    codes_sum = e.broadcast(numbers[2 if len(scales) == 1 else 3], row * 4, I32)
                    if part:
                        codes_sum = b.sub(e.broadcast(numbers[2], row * 4, I32), codes_sum)
                    dot = b.sub(dot, b.shl(codes_sum, const_i32(zero.bit_length() - 1)))
                block = b.fmul(b.sitofp(dot, V32), e.broadcast(numbers[0], row * 4))
                total = e.fma(scale, block, b.load(totals[row]))
                if minimum is not None:
                    total = e.fma(minimum, e.broadcast(numbers[1], row * 4), total)
                b.store(total, totals[row])
    for row in range(rows):
        e.store(b.load(totals[row]), out, row * 64, align=64)


@intrinsic
def quantise_row(typing, tile, size, index, row, num_blocks):
    """Row `index` of a tile of `size` quantised rows, from num_blocks · 32 f32 at `row`.

    scale = peak / 127, peak the largest |x| of the block; code = round(x · (1 / scale)). A block whose peak is below
    2⁻¹⁰⁰ is zeros with scale 0; one with an infinity or NaN has zeros and scale NaN, so that its products are NaN.
    """

    def codegen(context, builder, signature, args):
        tile, size, index, row, num_blocks = args
        e, b = Emitter(builder), builder
        stride = b.mul(size, const_i64(4))
        first = e.at(tile, b.mul(index, const_i64(4)))
        planes = e.at(first, b.mul(b.mul(num_blocks, const_i64(BLOCK_COLS)), size))
        plane = b.mul(num_blocks, stride)
        with cgutils.for_range(b, num_blocks, intp=I64) as block:
            at = b.mul(block.index, const_i64(BLOCK_COLS * 4))
            values = [e.load(row, b.add(at, const_i64(i)), V32, align=4) for i in (0, LANES * 4)]
            sizes = [b.and_(b.bitcast(v, VI32), const_i32(0x7FFFFFFF)) for v in values]
            peak = e.tree(_larger(e, *sizes), lambda m, n: _larger(e, m, n))
            is_number = b.icmp_signed("<", peak, ir.Constant(I32, _INFINITY_BITS))
            is_used = b.and_(is_number, b.icmp_signed(">=", peak, ir.Constant(I32, _LEAST_PEAK_BITS)))
            scale = b.fdiv(b.bitcast(peak, F32), ir.Constant(F32, _LARGEST_CODE))
            inverse = e.splat(b.fdiv(ir.Constant(F32, 1.0), scale))
            scale = b.select(is_used, scale, ir.Constant(F32, 0.0))
            scale = b.select(is_number, scale, ir.Constant(F32, _NAN))
            mask = e.splat(is_used)
            codes = [b.fptosi(e.round(b.select(mask, b.fmul(v, inverse), ZERO)), VI32) for v in values]
            low = e.tree(codes[0], b.add)
            total = b.add(low, e.tree(codes[1], b.add))
            words = e.at(first, b.mul(b.mul(block.index, const_i64(_WORDS)), stride))
            for half, lanes in enumerate(codes):
                packed = b.bitcast(b.trunc(lanes, VI8), ir.VectorType(I32, 4))
                for i in range(4):
                    word = b.extract_element(packed, ir.Constant(I32, i))
                    e.store(word, words, b.mul(stride, const_i64(4 * half + i)), align=4)
            numbers = e.at(planes, b.mul(block.index, stride))
            for i, number in enumerate((scale, b.fmul(scale, b.sitofp(total, F32)), total, low)):
                e.store(number, numbers, b.mul(plane, const_i64(i)), align=4)
        return context.get_dummy_value()

    return types.void(I, I, I, I, I), codegen


def _larger(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    return e.b.select(e.b.icmp_signed(">", a, b), a, b)
