"""Emits vector code: 16 lanes of f32 as LLVM IR, the alphabet in which every fast kernel is written.

Each operation is one IEEE operation or an explicit fused multiply-add; nothing may be reordered or contracted, so the
sum order of a result is the order of the calls here, on every CPU. `<16 x float>` is legal everywhere: LLVM splits it
into what the machine has. `docs/numerics.md` states exp, tanh and the horizontal sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from llvmlite import ir
from numba.core import cgutils, config

from .target import Target, current_target

LANES = 16
I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
F32, F16 = ir.FloatType(), ir.HalfType()
V32 = ir.VectorType(F32, LANES)
V16 = ir.VectorType(F16, LANES)
VI8, VI16, VI32 = (ir.VectorType(t, LANES) for t in (I8, I16, I32))
POINTER = ir.PointerType()

# exp: x = n·ln2 + r, |r| ≤ ln2 / 2; a polynomial of degree 7 (Cephes expf), then n is added to the exponent bits
EXP_LOWEST, EXP_HIGHEST = -87.3, 88.0  # below: exactly 0; above: exp(88), still finite
_ROUNDING = 1.5 * 2**23  # added to a number below 2²², it leaves no bits of fraction
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_TERMS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
# tanh below 0.625: x + x³·P(x²) (Cephes tanhf); above: 1 − 2 / (exp 2x + 1)
_TANH_SMALL = 0.625
_TANH_TERMS = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


def const_f32(value: float) -> ir.Constant:
    """`value` rounded to f32, in every lane."""
    return ir.Constant(V32, [float(np.float32(value))] * LANES)


def const_i32(value: int) -> ir.Constant:
    return ir.Constant(VI32, [value] * LANES)


def const_i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


ZERO = const_f32(0.0)


@cache
def compile_target() -> Target:
    """The CPU that numba compiles for in this process."""
    settings = {f"NUMBA_{name}": getattr(config, name) for name in ("CPU_NAME", "CPU_FEATURES")}
    return current_target({name: value for name, value in settings.items() if value is not None})


class Emitter:
    """Vector operations on one IR builder. Addresses are i64 values in bytes."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder
        self.target = compile_target()

    # memory

    def at(self, base: ir.Value, offset: int | ir.Value) -> ir.Value:
        if isinstance(offset, int):
            return self.b.add(base, const_i64(offset)) if offset else base
        return self.b.add(base, offset)

    def load(self, base: ir.Value, offset: int | ir.Value, kind: ir.Type, align: int = 1) -> ir.Value:
        return self.b.load(self.b.inttoptr(self.at(base, offset), POINTER), align=align, typ=kind)

    def store(self, value: ir.Value, base: ir.Value, offset: int | ir.Value, align: int = 1) -> None:
        self.b.store(value, self.b.inttoptr(self.at(base, offset), POINTER), align=align)

    def splat(self, value: ir.Value) -> ir.Value:
        kind = ir.VectorType(value.type, LANES)
        undefined = ir.Constant(kind, ir.Undefined)
        one = self.b.insert_element(undefined, value, ir.Constant(I32, 0))
        return self.b.shuffle_vector(one, undefined, const_i32(0))

    def broadcast(self, base: ir.Value, offset: int | ir.Value, kind: ir.Type = F32) -> ir.Value:
        """One scalar of memory in every lane."""
        return self.splat(self.load(base, offset, kind, align=1))

    def variable(self, initial: ir.Value) -> ir.Value:
        """A stack slot that LLVM turns into a register."""
        slot = cgutils.alloca_once(self.b, initial.type)
        self.b.store(initial, slot)
        return slot

    # f16

    def half_to_float(self, value: ir.Value) -> ir.Value:
        """f16 lanes → f32, exact. Without the CPU's instruction: the bits are shifted, then rescaled by 2¹¹²."""
        b = self.b
        if self.target.has_half_conversion:
            return b.fpext(value, V32)
        bits = b.zext(b.bitcast(value, VI16), VI32)
        size = b.shl(b.and_(bits, const_i32(0x7FFF)), const_i32(13))
        scaled = b.bitcast(b.fmul(b.bitcast(size, V32), const_f32(2.0**112)), VI32)
        special = b.icmp_unsigned(">=", size, const_i32(0x0F800000))  # inf and NaN keep an all-ones exponent
        scaled = b.select(special, b.or_(size, const_i32(0x7F800000)), scaled)
        return b.bitcast(b.or_(scaled, b.shl(b.and_(bits, const_i32(0x8000)), const_i32(16))), V32)

    def float_to_half(self, value: ir.Value) -> ir.Value:
        """f32 lanes → f16, to nearest even; too large becomes inf."""
        b = self.b
        if self.target.has_half_conversion:
            return b.fptrunc(value, V16)
        bits = b.bitcast(value, VI32)
        size = b.and_(bits, const_i32(0x7FFFFFFF))
        # ordinary numbers: re-bias the exponent, add half of the last place, ties by its lowest bit
        odd = b.and_(b.lshr(size, const_i32(13)), const_i32(1))
        normal = b.lshr(b.add(b.add(size, const_i32(0x0FFF - (112 << 23))), odd), const_i32(13))
        # below 2⁻¹⁴: adding ½ leaves the rounded fraction in the low bits
        tiny = b.sub(b.bitcast(b.fadd(b.bitcast(size, V32), const_f32(0.5)), VI32), const_i32(0x3F000000))
        half = b.select(b.icmp_unsigned("<", size, const_i32(0x38800000)), tiny, normal)
        half = b.select(b.icmp_unsigned(">=", size, const_i32(0x47800000)), const_i32(0x7C00), half)
        half = b.select(b.icmp_unsigned(">", size, const_i32(0x7F800000)), const_i32(0x7E00), half)
        half = b.or_(half, b.and_(b.lshr(bits, const_i32(16)), const_i32(0x8000)))
        return b.bitcast(b.trunc(half, VI16), V16)

    # arithmetic

    def call(self, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
        signature = ir.FunctionType(result, [a.type for a in args])
        return self.b.call(cgutils.get_or_insert_function(self.b.module, signature, name), args)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a · b + c, rounded once."""
        suffix = "v16f32" if a.type == V32 else "f32"
        return self.call(f"llvm.fma.{suffix}", a.type, a, b, c)

    def sqrt(self, value: ir.Value) -> ir.Value:
        return self.call(f"llvm.sqrt.{'v16f32' if value.type == V32 else 'f32'}", value.type, value)

    def abs(self, value: ir.Value) -> ir.Value:
        return self.call("llvm.fabs.v16f32", V32, value)

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Where a > b, a, else b: a NaN in `b` stays, one in `a` is lost."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def size(self, value: ir.Value) -> ir.Value:
        """|value| as whole numbers of the same order: an infinity above all numbers, NaN above that."""
        return self.b.and_(self.b.bitcast(value, VI32), const_i32(0x7FFFFFFF))

    def larger_size(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Of two sizes the larger one: a NaN on either side stays."""
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    def negate(self, value: ir.Value) -> ir.Value:
        return self.b.fsub(const_f32(-0.0), value)

    def tree(self, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """All lanes to one scalar by a fixed tree: lane i with i + 8, then i + 4, i + 2, i + 1."""
        for step in (8, 4, 2, 1):
            turned = ir.Constant(VI32, [(lane + step) % LANES for lane in range(LANES)])
            value = combine(value, self.b.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), turned))
        return self.b.extract_element(value, ir.Constant(I32, 0))

    def sum(self, value: ir.Value) -> ir.Value:
        return self.tree(value, self.b.fadd)

    def tree_of(self, values: Sequence[ir.Value]) -> ir.Value:
        """Eight vectors added pairwise: ((0+1)+(2+3))+((4+5)+(6+7))."""
        level = list(values)
        while len(level) > 1:
            level = [self.b.fadd(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        return level[0]

    def polynomial(self, x: ir.Value, terms: Sequence[float]) -> ir.Value:
        """Horner's rule, one fma a term, highest power first."""
        value = const_f32(terms[0])
        for term in terms[1:]:
            value = self.fma(value, x, const_f32(term))
        return value

    def exp(self, x: ir.Value) -> ir.Value:
        """exp, below 2 ulp; 0 below −87.3, exp(88) above 88, NaN for NaN."""
        b = self.b
        is_nan = b.fcmp_unordered("uno", x, x)
        too_low = b.fcmp_ordered("<", x, const_f32(EXP_LOWEST))
        bounded = b.select(too_low, const_f32(EXP_LOWEST), x)
        bounded = b.select(b.fcmp_ordered(">", bounded, const_f32(EXP_HIGHEST)), const_f32(EXP_HIGHEST), bounded)
        bounded = b.select(is_nan, ZERO, bounded)
        n = self.round(b.fmul(bounded, const_f32(_LOG2_E)))
        r = self.fma(n, const_f32(-_LN2_HIGH), bounded)
        r = self.fma(n, const_f32(-_LN2_LOW), r)
        p = self.polynomial(r, _EXP_TERMS)
        y = b.fadd(self.fma(p, b.fmul(r, r), r), const_f32(1.0))
        exponent = b.shl(b.fptosi(n, VI32), const_i32(23))
        y = b.bitcast(b.add(b.bitcast(y, VI32), exponent), V32)
        return b.select(is_nan, x, b.select(too_low, ZERO, y))

    def exp_of_shift(self, x: ir.Value) -> ir.Value:
        """The bits of `exp` for x ≤ 0 in fewer operations, but what −87.3 gives below it, not 0; NaN for NaN."""
        b = self.b
        bounded = b.select(b.fcmp_ordered(">", x, const_f32(EXP_LOWEST)), x, const_f32(EXP_LOWEST))
        moved = b.fadd(b.fmul(bounded, const_f32(_LOG2_E)), const_f32(_ROUNDING))
        n = b.fsub(moved, const_f32(_ROUNDING))
        r = self.fma(n, const_f32(-_LN2_HIGH), bounded)
        r = self.fma(n, const_f32(-_LN2_LOW), r)
        p = self.polynomial(r, _EXP_TERMS)
        y = b.fadd(self.fma(p, b.fmul(r, r), r), const_f32(1.0))
        exponent = b.shl(b.bitcast(moved, VI32), const_i32(23))  # n stands in the lowest bits of `moved`
        y = b.bitcast(b.add(b.bitcast(y, VI32), exponent), V32)
        return b.select(b.fcmp_unordered("uno", x, x), x, y)

    def round(self, value: ir.Value) -> ir.Value:
        """To the nearest integer, ties to even, for |value| < 2²²."""
        return self.b.fsub(self.b.fadd(value, const_f32(_ROUNDING)), const_f32(_ROUNDING))

    def tanh(self, x: ir.Value) -> ir.Value:
        """tanh, below 3 ulp; ±1 from |x| = 44 on."""
        b = self.b
        size = self.abs(x)
        grown = self.exp(b.fadd(size, size))
        large = b.fsub(const_f32(1.0), b.fdiv(const_f32(2.0), b.fadd(grown, const_f32(1.0))))
        sign = b.and_(b.bitcast(x, VI32), const_i32(-0x80000000))
        large = b.bitcast(b.or_(b.bitcast(large, VI32), sign), V32)
        square = b.fmul(x, x)
        small = self.fma(b.fmul(self.polynomial(square, _TANH_TERMS), square), x, x)
        return b.select(b.fcmp_ordered("<", size, const_f32(_TANH_SMALL)), small, large)
