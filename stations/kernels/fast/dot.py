"""Products of bytes added up in words: the same whole numbers by whatever instruction the CPU has."""

from __future__ import annotations

from llvmlite import ir

from .vector import I8, I16, I32, LANES, VI32, Emitter, const_i32

_HALF_BYTES, _HALF_WORDS, _HALF_I16 = (ir.VectorType(t, n) for t, n in ((I8, 32), (I32, 8), (I16, 16)))
_V_I16 = ir.VectorType(I16, 2 * LANES)


def dot4(e: Emitter, total: ir.Value, codes: ir.Value, x: ir.Value, code_bits: int) -> ir.Value:
    """total + Σ of the 4 products of bytes in each lane, i32: `codes` unsigned, below 2^code_bits, `x` −128 … 127."""
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


def _sum_of_pairs(e: Emitter, left: ir.Value, right: ir.Value) -> ir.Value:
    """Products of 32 numbers of 16 bits, those of a word added: what LLVM knows as one instruction of most CPUs."""
    b = e.b
    wide = ir.VectorType(I32, 2 * LANES)
    products = b.mul(b.sext(left, wide), b.sext(right, wide))
    undefined = ir.Constant(wide, ir.Undefined)
    return b.add(
        *(b.shuffle_vector(products, undefined, ir.Constant(VI32, list(range(i, 2 * LANES, 2)))) for i in range(2))
    )
