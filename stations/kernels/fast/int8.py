"""Activations in 8 bits, the `fast-int8` set: quantised rows, and the micro-kernel that multiplies them as integers.

A row's block of 32 inputs becomes x = scale · (code − zero), codes and zero −128 … 127: a block with one large value
of one sign, as normed rows have many, gets twice the steps that codes around 0 would give it. Sums of code products
are exact integers, whatever instruction adds them up, so a row's bits depend neither on its company nor on the CPU
(`docs/numerics.md`). A tile of R rows: codes [blocks][8 words of 4 inputs][R], then five planes [blocks][R] of f32:
scale, scale · Σ (code − zero), −zero, Σ (code − zero), and that sum of inputs 0 to 15.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...layout import BLOCK_COLS
from .codes import ZERO_POINT, BlockReader, block_addresses
from .compiled import intrinsic
from .dot import dot4
from .machine import I
from .vector import F32, I8, I16, I32, I64, LANES, V32, VI8, VI32, ZERO, Emitter, const_f32, const_i32, const_i64

_WORDS = BLOCK_COLS // 4  # of 4 inputs, in a block
_LEAST_CODE, _STEPS = -128, 255.0
_LEAST_RANGE = 2.0**-100  # a block that spans less counts as zeros: the inverse of tiny scales overflows
_INFINITY_BITS = 0x7F800000
_NAN = float("nan")
_SCALAR_0 = ir.Constant(F32, 0.0)
_ONES = 0x01010101
_NUM_PLANES = 5
_BYTES = ir.VectorType(I8, 4 * LANES)


class _CodesSum:
    """The sum of a sub-block's weight codes, i32 lanes: bytes added as such where 8 of them cannot overflow."""

    def __init__(self, e: Emitter, code_bits: int) -> None:
        self._e = e
        self._bits = code_bits
        self._bytes: ir.Value | None = None
        self._total = const_i32(0)

    def add(self, codes: ir.Value) -> None:
        b = self._e.b
        if self._bits == 8:
            self._total = dot4(self._e, self._total, codes, const_i32(_ONES), self._bits)
        elif self._bytes is None:
            self._bytes = b.bitcast(codes, _BYTES)
        else:
            self._bytes = b.add(self._bytes, b.bitcast(codes, _BYTES))

    def total(self) -> ir.Value:
        if self._bytes is None:
            return self._total
        return dot4(self._e, self._total, self._e.b.bitcast(self._bytes, VI32), const_i32(_ONES), 8)


def emit_int8_tile(e: Emitter, kind: str, rows: int, args: list[ir.Value]) -> None:
    """Sums of `rows` quantised rows × 16 outputs over blocks [lo, hi) → out f32 [rows, 16]."""
    group, lo, hi, x, planes, plane, out = args
    b = e.b
    weight_zero = ZERO_POINT.get(kind, 0)
    totals = [e.variable(ZERO) for _ in range(rows)]
    with cgutils.for_range_slice(b, lo, hi, const_i64(1), intp=I64) as (index, _):
        reader = BlockReader(e, kind, *block_addresses(e, kind, group, index))
        inputs = e.at(x, b.mul(index, const_i64(BLOCK_COLS * rows)))
        at = e.at(planes, b.mul(index, const_i64(rows * 4)))
        scale_x, mass, minus_zero, codes_sum, low_sum = (
            e.at(at, b.mul(plane, const_i64(i))) for i in range(_NUM_PLANES)
        )
        scales = reader.scales()
        step = _WORDS // len(scales)
        for part, (scale, minimum) in enumerate(scales):
            dots = [const_i32(0)] * rows
            weights_sum = _CodesSum(e, reader.code_bits)
            for i in range(part * step, (part + 1) * step):
                codes = reader.codes(i)
                weights_sum.add(codes)
                for row in range(rows):
                    word = e.broadcast(inputs, (i * rows + row) * 4, I32)
                    dots[row] = dot4(e, dots[row], codes, word, reader.code_bits)
            codes_of_weights = b.sitofp(weights_sum.total(), V32)
            for row in range(rows):
                # whole numbers below 2²⁴ from here to the product with a scale: exact
                block = e.fma(e.broadcast(minus_zero, row * 4), codes_of_weights, b.sitofp(dots[row], V32))
                if weight_zero:
                    inputs_sum = e.broadcast(codes_sum if len(scales) == 1 else low_sum, row * 4)
                    if part:
                        inputs_sum = b.fsub(e.broadcast(codes_sum, row * 4), inputs_sum)
                    block = e.fma(const_f32(-weight_zero), inputs_sum, block)
                total = e.fma(scale, b.fmul(block, e.broadcast(scale_x, row * 4)), b.load(totals[row]))
                if minimum is not None:
                    total = e.fma(minimum, e.broadcast(mass, row * 4), total)
                b.store(total, totals[row])
    for row in range(rows):
        e.store(b.load(totals[row]), out, row * 64, align=64)


@intrinsic
def quantise_row(typing, tile, size, index, row, num_blocks):
    """Row `index` of a tile of `size` quantised rows, from num_blocks · 32 f32 at `row`.

    low ≤ 0 ≤ high are the ends of the block with 0; scale = high / 255 − low / 255; zero = round(−low / scale) − 128;
    code = round(x / scale) + zero, cut to −128 … 127 (by 1 / scale, rounded once). A scale below 2⁻¹⁰⁰ / 255 makes
    zeros with scale 0; an infinity or NaN makes zeros with scale NaN, so that products are NaN.
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
            low, high = (e.tree(_end(e, sign, *values), partial(_end, e, sign)) for sign in "<>")
            low, high = (b.select(b.fcmp_ordered(sign, end, _SCALAR_0), end, _SCALAR_0)
                         for sign, end in (("<", low), (">", high)))  # fmt: skip
            scale = b.fsub(*(b.fdiv(end, ir.Constant(F32, _STEPS)) for end in (high, low)))
            is_number = b.not_(b.or_(*(_has_no_number(e, v) for v in values)))
            is_used = b.and_(is_number, b.fcmp_ordered(">=", scale, ir.Constant(F32, _LEAST_RANGE / _STEPS)))
            inverse = e.splat(b.fdiv(ir.Constant(F32, 1.0), scale))
            mask = e.splat(is_used)
            zero = e.round(b.select(mask, b.fmul(e.splat(b.fneg(low)), inverse), ZERO))
            zero = b.fadd(zero, b.select(mask, const_f32(_LEAST_CODE), ZERO))
            codes = []
            for v in values:
                code = b.fadd(e.round(b.select(mask, b.fmul(v, inverse), ZERO)), zero)
                code = b.select(b.fcmp_ordered("<", code, const_f32(_LEAST_CODE)), const_f32(_LEAST_CODE), code)
                code = b.select(b.fcmp_ordered(">", code, const_f32(127.0)), const_f32(127.0), code)
                codes.append(code)
            scale = b.select(is_used, scale, _SCALAR_0)
            scale = b.select(is_number, scale, ir.Constant(F32, _NAN))
            low_sum = e.sum(b.fsub(codes[0], zero))  # whole numbers: exact
            codes_sum = b.fadd(low_sum, e.sum(b.fsub(codes[1], zero)))
            words = e.at(first, b.mul(b.mul(block.index, const_i64(_WORDS)), stride))
            for half, lanes in enumerate(codes):
                packed = b.bitcast(b.trunc(b.fptosi(lanes, VI32), VI8), ir.VectorType(I32, 4))
                for i in range(4):
                    word = b.extract_element(packed, ir.Constant(I32, i))
                    e.store(word, words, b.mul(stride, const_i64(4 * half + i)), align=4)
            minus_zero = b.fneg(b.extract_element(zero, ir.Constant(I32, 0)))
            numbers = e.at(planes, b.mul(block.index, stride))
            for i, number in enumerate((scale, b.fmul(scale, codes_sum), minus_zero, codes_sum, low_sum)):
                e.store(number, numbers, b.mul(plane, const_i64(i)), align=4)
        return context.get_dummy_value()

    return types.void(I, I, I, I, I), codegen


def _end(e: Emitter, sign: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """The lesser or larger of two values, by lane; of a NaN either."""
    return e.b.select(e.b.fcmp_ordered(sign, a, b), a, b)


def _has_no_number(e: Emitter, value: ir.Value) -> ir.Value:
    """Whether any lane is an infinity or NaN, as one bit."""
    size = e.b.and_(e.b.bitcast(value, VI32), const_i32(0x7FFFFFFF))
    lanes = e.b.icmp_signed(">=", size, const_i32(_INFINITY_BITS))
    return e.b.icmp_unsigned("!=", e.b.bitcast(lanes, I16), ir.Constant(I16, 0))
