"""The seal of an O(1) group in compiled code: landmarks, M, and the prompt's rows in the far sums.

The formulas are `stations/kv/nystrom.py`'s. Means, exponents and the Cholesky solve are f64 in a fixed order, exp
included, so that a sealed layer has the same bits on every machine.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...kv.nystrom import RIDGE, RIDGE_STEPS
from ...kv.table import GROUP_HEAD_FIELDS, SEGMENT_FIELDS, Group, GroupSegment, Segment
from .attention_forms import VECTOR
from .attention_overlay import add_far
from .compiled import compiled, intrinsic
from .machine import copy_row, field, load_f32, store_f32
from .vector import I64, LANES, Emitter, const_i64

_MARKS, _FAR_HEADS, _LEVEL = int(Group.MARKS), int(Group.FAR_HEADS), int(Group.LEVEL)
_SINK, _WINDOW = int(Group.SINK), int(Group.WINDOW)
_MARK_ROWS, _FAR, _INVERSE = int(GroupSegment.MARKS), int(GroupSegment.FAR), int(GroupSegment.INVERSE)
_K, _K_STRIDE, _V, _V_STRIDE = int(Segment.K), int(Segment.K_STRIDE), int(Segment.V), int(Segment.V_STRIDE)
_WIDE = 8  # f64 a vector
_DOUBLE = ir.DoubleType()
_V64 = ir.VectorType(_DOUBLE, _WIDE)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOWEST = -700.0
_TERMS = 14  # of exp's series: |r| ≤ ln 2 / 2


@intrinsic
def _load(typing, address):
    def codegen(context, builder, signature, args):
        return Emitter(builder).load(args[0], 0, _DOUBLE, align=8)

    return types.float64(types.int64), codegen


@intrinsic
def _store(typing, address, value):
    def codegen(context, builder, signature, args):
        Emitter(builder).store(args[1], args[0], 0, align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.float64), codegen


@intrinsic
def _add_scaled(typing, y, x, factor, count):
    """y += factor · x, `count` f64, a multiplication and an addition each."""

    def codegen(context, builder, signature, args):
        y, x, factor, count = args
        e = Emitter(builder)
        undefined = ir.Constant(_V64, ir.Undefined)
        one = builder.insert_element(undefined, factor, ir.Constant(ir.IntType(32), 0))
        wide = builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), _WIDE), [0] * _WIDE))
        full = builder.udiv(count, const_i64(_WIDE))
        with cgutils.for_range(builder, full, intp=I64) as loop:
            at = builder.mul(loop.index, const_i64(8 * _WIDE))
            product = builder.fmul(wide, e.load(x, at, _V64, align=8))
            e.store(builder.fadd(e.load(y, at, _V64, align=8), product), y, at, align=8)
        done = builder.mul(full, const_i64(_WIDE))
        with cgutils.for_range_slice(builder, done, count, const_i64(1), I64) as (index, _):
            at = builder.mul(index, const_i64(8))
            product = builder.fmul(factor, e.load(x, at, _DOUBLE, align=8))
            e.store(builder.fadd(e.load(y, at, _DOUBLE, align=8), product), y, at, align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64, types.int64), codegen


@compiled
def _exp(x):
    """e^x for x ≤ 0 in f64, below −700 exactly 0: series of the rest, then halvings."""
    if not x >= _LOWEST:
        return 0.0
    n = math.floor(x * _LOG2_E + 0.5)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    value = 1.0
    for term in range(_TERMS, 0, -1):
        value = 1.0 + value * r / term
    factor, power, left = 1.0, 0.5, -n
    while left > 0:
        if left % 2 == 1:
            factor *= power
        power *= power
        left //= 2
    return value * factor


@compiled
def _add_row(sums, row, dim):
    for d in range(dim):
        _store(sums + d * 8, _load(sums + d * 8) + np.float64(load_f32(row + d * 4)))


@compiled
def _set_marks(tiles, marks, rows, row_bytes, count, dim, blocks, sums):
    """Landmark i: the mean of rows ⌊i·count/marks⌋ up to ⌊(i+1)·count/marks⌋, into its place of the tiles."""
    for i in range(marks):
        lo, hi = i * count // marks, (i + 1) * count // marks
        for d in range(dim):
            _store(sums + d * 8, 0.0)
        for row in range(lo, hi):
            _add_row(sums, rows + row * row_bytes, dim)
        target = tiles + i // LANES * blocks * LANES * VECTOR + i % LANES * 4
        for d in range(dim):
            store_f32(target + d * VECTOR, np.float32(_load(sums + d * 8) / np.float64(hi - lo)))


@compiled
def _exponents(a, queries, keys, marks, dim, blocks, scale):
    """a[b, i] = q̃_b · k̃_i · scale; returns the largest."""
    level = -np.inf
    for b in range(marks):
        q = queries + b // LANES * blocks * LANES * VECTOR + b % LANES * 4
        for i in range(marks):
            k = keys + i // LANES * blocks * LANES * VECTOR + i % LANES * 4
            total = 0.0
            for d in range(dim):
                total += np.float64(load_f32(q + d * VECTOR)) * np.float64(load_f32(k + d * VECTOR))
            total *= scale
            _store(a + (b * marks + i) * 8, total)
            level = max(level, total)
    return level


@compiled
def _factor(gram, root, marks, ridge):
    """Upper R with RᵀR = gram + ridge · I; False where there is none. Row j of R comes from the rows before."""
    row_bytes = marks * 8
    for j in range(marks):
        target = root + j * row_bytes
        for i in range(j, marks):
            _store(target + i * 8, _load(gram + j * row_bytes + i * 8))
        _store(target + j * 8, _load(target + j * 8) + ridge)
        for k in range(j):
            source = root + k * row_bytes
            _add_scaled(target + j * 8, source + j * 8, -_load(source + j * 8), marks - j)
        pivot = _load(target + j * 8)
        if not pivot > 0.0:
            return False
        inverse = 1.0 / math.sqrt(pivot)
        for i in range(j, marks):
            _store(target + i * 8, _load(target + i * 8) * inverse)
    return True


@compiled
def _solve(root, x, marks):
    """x ← (RᵀR)⁻¹ x, x [marks, marks]."""
    row_bytes = marks * 8
    for j in range(marks):
        for k in range(j):
            _add_scaled(x + j * row_bytes, x + k * row_bytes, -_load(root + k * row_bytes + j * 8), marks)
        _divide(x + j * row_bytes, _load(root + j * row_bytes + j * 8), marks)
    for j in range(marks - 1, -1, -1):
        for k in range(j + 1, marks):
            _add_scaled(x + j * row_bytes, x + k * row_bytes, -_load(root + j * row_bytes + k * 8), marks)
        _divide(x + j * row_bytes, _load(root + j * row_bytes + j * 8), marks)


@compiled
def _divide(row, by, count):
    for i in range(count):
        _store(row + i * 8, _load(row + i * 8) / by)


@compiled
def _invert(queries, keys, marks, dim, blocks, scale, target, level_at, scratch):
    """M = (AᵀA + λI)⁻¹Aᵀ into `target`, f32 rows of padded marks; λ grows up to RIDGE_STEPS times until it works."""
    size = marks * marks * 8
    a, gram, root = scratch, scratch + size, scratch + 2 * size
    level = _exponents(a, queries, keys, marks, dim, blocks, scale)
    store_f32(level_at, np.float32(level))
    for i in range(marks * marks):
        _store(a + i * 8, _exp(_load(a + i * 8) - level))
        _store(gram + i * 8, 0.0)
    for b in range(marks):
        for i in range(marks):
            _add_scaled(gram + i * marks * 8, a + b * marks * 8, _load(a + (b * marks + i) * 8), marks)
    mean = 0.0
    for i in range(marks):
        mean += _load(gram + (i * marks + i) * 8)
    mean /= marks
    ridge, is_found = RIDGE * mean, False
    for _ in range(RIDGE_STEPS + 1):
        is_found = _factor(gram, root, marks, ridge)
        if is_found:
            break
        ridge *= 10.0
    x = gram  # its place is free now: Aᵀ, then M
    for b in range(marks):
        for i in range(marks):
            value = _load(a + (b * marks + i) * 8)
            _store(x + (i * marks + b) * 8, value if is_found else value / mean)
    if is_found:
        _solve(root, x, marks)
    stride = (marks + LANES - 1) // LANES * VECTOR
    for i in range(marks):
        for b in range(marks):
            store_f32(target + i * stride + b * 4, np.float32(_load(x + (i * marks + b) * 8)))


@compiled
def fill_group(group, q, q_head_bytes, rows, k, v, head_dim, blocks, scale, scratch):
    """q f32 [far heads, rows, head_dim], k and v [rows, head_dim] of a prompt: landmarks, M, and the far rows joined.

    `scratch`: 8-byte aligned, three times marks² and head_dim f64; then, aligned to 64, two padded rows and twice
    the padded marks f32 (`seal_scratch_bytes`).
    """
    marks, row_bytes = field(group, _MARKS), head_dim * 4
    keys = field(group + (GROUP_HEAD_FIELDS + _MARK_ROWS * SEGMENT_FIELDS) * 8, _K)
    far = group + (GROUP_HEAD_FIELDS + _FAR * SEGMENT_FIELDS) * 8
    inverse = group + (GROUP_HEAD_FIELDS + _INVERSE * SEGMENT_FIELDS) * 8
    sums = scratch + 3 * marks * marks * 8
    _set_marks(keys, marks, k, row_bytes, rows, head_dim, blocks, sums)
    for head in range(field(group, _FAR_HEADS)):
        queries = field(far, _K) + head * field(far, _K_STRIDE)
        _set_marks(queries, marks, q + head * q_head_bytes, row_bytes, rows, head_dim, blocks, sums)
        _invert(queries, keys, marks, head_dim, blocks, np.float64(scale),
                field(inverse, _V) + head * field(inverse, _V_STRIDE), field(group, _LEVEL) + head * 4,
                scratch)  # fmt: skip
    key = (sums + head_dim * 8 + VECTOR - 1) // VECTOR * VECTOR
    value = key + blocks * VECTOR
    for row in range(field(group, _SINK), rows - field(group, _WINDOW)):
        copy_row(key, k + row * row_bytes, head_dim, blocks * LANES)
        copy_row(value, v + row * row_bytes, head_dim, blocks * LANES)
        add_far(group, key, value, blocks, scale, value + blocks * VECTOR)
