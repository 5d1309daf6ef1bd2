"""Codes one row of K or V in 8 bits, straight into the cache: the same bits as `stations/kv/codes8.py`.

    s = max(absmax / 127, 1e-12)      q = clamp(round(x / col / s), ±127), halves away from zero

Only exact operations and divisions are used, so compiled and plain rows cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...kv.table import Segment
from .compiled import intrinsic, kernel
from .machine import I, field
from .rows import masked_vector
from .vector import F32, I32, I64, LANES, V32, VI8, VI32, ZERO, Emitter, const_f32, const_i32, const_i64

_K, _K_STRIDE, _K_SCALE = int(Segment.K), int(Segment.K_STRIDE), int(Segment.K_SCALE)
_K_SCALE_STRIDE, _K_COLUMN = int(Segment.K_SCALE_STRIDE), int(Segment.K_COLUMN)
_V, _V_STRIDE, _V_SCALE = int(Segment.V), int(Segment.V_STRIDE), int(Segment.V_SCALE)
_V_SCALE_STRIDE, _V_COLUMN = int(Segment.V_SCALE_STRIDE), int(Segment.V_COLUMN)
_VECTOR = LANES * 4
_TOP = 127.0
_LEAST_SCALE = float(np.float32(1e-12))
_SIGN = -0x80000000
_WORDS = ir.VectorType(I32, LANES // 4)


def _scaled(e: Emitter, source: ir.Value, vector: ir.Value, width: ir.Value, columns: ir.Value) -> ir.Value:
    """Vector `vector` of the row, divided by its columns unless `columns` is 0; lanes behind `width` are 0."""
    b = e.b
    value = e.variable(masked_vector(e, source, vector, width))
    with b.if_then(b.icmp_unsigned("!=", columns, const_i64(0))):
        column = e.load(columns, b.mul(vector, const_i64(_VECTOR)), V32, align=4)
        b.store(b.fdiv(b.load(value), column), value)
    return b.load(value)


def _code(e: Emitter, value: ir.Value, scale: ir.Value) -> ir.Value:
    """round(value / scale) within ±127, halves away from zero, as i8 lanes; 0 where that is no number."""
    b = e.b
    x = b.fdiv(value, scale)
    x = b.select(b.fcmp_ordered("ord", x, x), x, ZERO)
    whole = b.sitofp(b.fptosi(x, VI32), V32)  # |x| is at most a little above 127
    is_half = b.fcmp_ordered(">=", e.abs(b.fsub(x, whole)), const_f32(0.5))
    sign = b.and_(b.bitcast(x, VI32), const_i32(_SIGN))
    one = b.bitcast(b.or_(b.bitcast(const_f32(1.0), VI32), sign), V32)
    rounded = b.select(is_half, b.fadd(whole, one), whole)
    rounded = b.select(b.fcmp_ordered(">", rounded, const_f32(_TOP)), const_f32(_TOP), rounded)
    rounded = b.select(b.fcmp_ordered("<", rounded, const_f32(-_TOP)), const_f32(-_TOP), rounded)
    return b.trunc(b.fptosi(rounded, VI32), VI8)


def _scale_of(e: Emitter, largest: ir.Value) -> ir.Value:
    """The scale of a group from its largest |value| by lane, as bits; NaN where one is NaN."""
    b = e.b
    scale = b.fdiv(b.bitcast(e.tree(largest, e.larger_size), F32), ir.Constant(F32, _TOP))
    least = ir.Constant(F32, _LEAST_SCALE)
    return b.select(b.fcmp_unordered(">", scale, least), scale, least)


def _place_keys(e: Emitter, code: ir.Value, codes: ir.Value, vector: ir.Value) -> None:
    """16 dims of a K row plus 128, word by word of 4 dims: those of the tile's next rows lie between."""
    b = e.b
    words = b.bitcast(b.xor(code, ir.Constant(VI8, [-0x80] * LANES)), _WORDS)
    start = e.at(codes, b.mul(vector, const_i64(LANES * LANES)))
    for word in range(LANES // 4):
        e.store(b.extract_element(words, ir.Constant(I32, word)), start, word * _VECTOR)


def _place_values(e: Emitter, code: ir.Value, codes: ir.Value, vector: ir.Value) -> None:
    """16 dims of a V row, byte by byte: those of the 3 rows beside it lie between."""
    start = e.at(codes, e.b.mul(vector, const_i64(_VECTOR)))
    for lane in range(LANES):
        e.store(e.b.extract_element(code, ir.Constant(I32, lane)), start, 4 * lane)


def _coder(place: Callable[[Emitter, ir.Value, ir.Value, ir.Value], None]) -> Any:
    @intrinsic
    def code_group(typing, source, columns, width, vector, count, codes, scale_at):
        """`count` vectors of a row from `vector` on, one scale for all: codes to their places, the scale f32."""

        def codegen(context, builder, signature, args):
            source, columns, width, vector, count, codes, scale_at = args
            e = Emitter(builder)
            largest = e.variable(const_i32(0))
            with cgutils.for_range(builder, count, intp=I64) as loop:
                value = _scaled(e, source, builder.add(vector, loop.index), width, columns)
                builder.store(e.larger_size(e.size(value), builder.load(largest)), largest)
            scale = _scale_of(e, builder.load(largest))
            e.store(scale, scale_at, 0, align=4)
            with cgutils.for_range(builder, count, intp=I64) as loop:
                at = builder.add(vector, loop.index)
                place(e, _code(e, _scaled(e, source, at, width, columns), e.splat(scale)), codes, at)
            return context.get_dummy_value()

        return types.void(I, I, I, I, I, I, I), codegen

    return code_group


_code_keys, _code_values = _coder(_place_keys), _coder(_place_values)


@kernel
def store_keys8(segment, kv_head, row, source, head_dim, padded_dim):
    """K of one head, f32 [head_dim] rotated, as row `row` of a segment in 8 bits: a scale per 32 dims."""
    vectors = padded_dim // LANES
    groups = (vectors + 1) // 2
    tile, lane = row // LANES, row % LANES
    codes = field(segment, _K) + kv_head * field(segment, _K_STRIDE) + tile * padded_dim * LANES + lane * 4
    scales = field(segment, _K_SCALE) + kv_head * field(segment, _K_SCALE_STRIDE) + tile * groups * _VECTOR + lane * 4
    columns = field(segment, _K_COLUMN)
    if columns != 0:
        columns += kv_head * padded_dim * 4
    for group in range(groups):
        count = min(vectors - 2 * group, 2)
        _code_keys(source, columns, head_dim, 2 * group, count, codes, scales + group * _VECTOR)


@kernel
def store_values8(segment, kv_head, row, source, head_dim, padded_dim):
    """V of one head, f32 [head_dim], as row `row` of a segment in 8 bits: one scale."""
    codes = field(segment, _V) + kv_head * field(segment, _V_STRIDE) + row // 4 * padded_dim * 4 + row % 4
    scale = field(segment, _V_SCALE) + kv_head * field(segment, _V_SCALE_STRIDE) + row * 4
    columns = field(segment, _V_COLUMN)
    if columns != 0:
        columns += kv_head * padded_dim * 4
    _code_values(source, columns, head_dim, 0, padded_dim // LANES, codes, scale)
