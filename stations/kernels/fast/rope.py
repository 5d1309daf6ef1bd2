"""Rotates Q and K by position and stores K and V: rows go straight into the cache's storage (`stations/kv/table.py`).

Pairs (2i, 2i + 1) of the first rope dims turn: even · cos − odd · sin, even · sin + odd · cos, each product and sum
rounded by itself. Tables are f32, one row a position: cosines, then sines (`kernels/rotary.py`).
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...kv.table import HEADER_FIELDS, SEGMENT_FIELDS, Form, Header, Segment
from .compiled import intrinsic, kernel
from .kv_codes import store_keys8, store_values8
from .machine import I, field, load_f32, store_f32
from .rows import masked_vector
from .vector import F32, I32, I64, LANES, V32, VI32, Emitter, const_i64

_SEQ, _SEGMENTS, _PADDED_DIM = int(Header.SEQ), int(Header.SEGMENTS), int(Header.PADDED_DIM)
_FIRST, _K_FORM, _V_FORM = int(Segment.FIRST), int(Segment.K_FORM), int(Segment.V_FORM)
_K, _K_STRIDE, _V, _V_STRIDE = int(Segment.K), int(Segment.K_STRIDE), int(Segment.V), int(Segment.V_STRIDE)
_F16, _Q8 = int(Form.F16), int(Form.Q8)
_HALF_LANES = LANES // 2
_SIGN = -0x80000000


@intrinsic
def _rotate_vectors(typing, head, table, half, vectors):
    """Rotate `vectors` × 16 dims of a head in place; `table` is the position's row of 2 · `half` values."""

    def codegen(context, builder, signature, args):
        head, table, half, vectors = args
        e = Emitter(builder)
        eight = ir.VectorType(F32, _HALF_LANES)
        undefined = ir.Constant(eight, ir.Undefined)
        doubled = ir.Constant(VI32, [lane // 2 for lane in range(LANES)])
        swapped = ir.Constant(VI32, [lane ^ 1 for lane in range(LANES)])
        signs = ir.Constant(VI32, [0 if lane % 2 else _SIGN for lane in range(LANES)])
        sines = e.at(table, builder.mul(half, const_i64(4)))
        with cgutils.for_range(builder, vectors, intp=I64) as vector:
            at, pair = builder.mul(vector.index, const_i64(64)), builder.mul(vector.index, const_i64(32))
            x = e.load(head, at, V32)
            cos = builder.shuffle_vector(e.load(table, pair, eight), undefined, doubled)
            sin = builder.shuffle_vector(e.load(sines, pair, eight), undefined, doubled)
            sin = builder.bitcast(builder.xor(builder.bitcast(sin, VI32), signs), V32)
            other = builder.shuffle_vector(x, ir.Constant(V32, ir.Undefined), swapped)
            e.store(builder.fadd(builder.fmul(x, cos), builder.fmul(other, sin)), head, at)
        return context.get_dummy_value()

    return types.void(I, I, I, I), codegen


@kernel
def _rotate_head(head, table, rope_dim):
    half = rope_dim // 2
    vectors = rope_dim // LANES
    _rotate_vectors(head, table, half, vectors)
    for pair in range(vectors * _HALF_LANES, half):
        cos, sin = load_f32(table + pair * 4), load_f32(table + (half + pair) * 4)
        even, odd = load_f32(head + pair * 8), load_f32(head + pair * 8 + 4)
        store_f32(head + pair * 8, even * cos - odd * sin)
        store_f32(head + pair * 8 + 4, even * sin + odd * cos)


@intrinsic
def _store_values(typing, target, step, source, width, is_half):
    """`width` values, zeros up to a multiple of 16, as f32 or (is_half) f16, `step` bytes from one to the next."""

    def codegen(context, builder, signature, args):
        target, step, source, width, is_half = args
        e = Emitter(builder)
        vectors = builder.lshr(builder.add(width, const_i64(LANES - 1)), const_i64(4))
        half = builder.icmp_signed("!=", is_half, const_i64(0))
        with cgutils.for_range(builder, vectors, intp=I64) as vector:
            value = masked_vector(e, source, vector.index, width)
            start = builder.mul(vector.index, builder.mul(step, const_i64(LANES)))
            with builder.if_else(half) as (as_half, as_float):
                with as_half:
                    _scatter(e, e.float_to_half(value), target, start, step)
                with as_float:
                    _scatter(e, value, target, start, step)
        return context.get_dummy_value()

    return types.void(I, I, I, I, I), codegen


def _scatter(e: Emitter, value: ir.Value, target: ir.Value, start: ir.Value, step: ir.Value) -> None:
    for lane in range(LANES):
        offset = e.b.add(start, e.b.mul(step, const_i64(lane)))
        e.store(e.b.extract_element(value, ir.Constant(I32, lane)), target, offset)


@kernel
def _store_key(segment, head, row, source, head_dim, padded):
    form = field(segment, _K_FORM)
    if form == _Q8:
        store_keys8(segment, head, row, source, head_dim, padded)
    else:
        half = 1 if form == _F16 else 0
        size = 4 - 2 * half
        tile = field(segment, _K) + head * field(segment, _K_STRIDE) + row // LANES * padded * LANES * size
        _store_values(tile + row % LANES * size, LANES * size, source, head_dim, half)


@kernel
def _store_value(segment, head, row, source, head_dim, padded):
    form = field(segment, _V_FORM)
    if form == _Q8:
        store_values8(segment, head, row, source, head_dim, padded)
    else:
        half = 1 if form == _F16 else 0
        size = 4 - 2 * half
        target = field(segment, _V) + head * field(segment, _V_STRIDE) + row * padded * size
        _store_values(target, size, source, head_dim, half)


@kernel
def rotate_and_store(row, k, v, heads, kv_heads, head_dim, rope_dim, table_row, kv_table, index):
    """One row: Q rotated in place, K rotated in place and stored, V stored, as row SEQ + `index` of the cache.

    `row`, `k`, `v`: addresses of the row's heads, f32 [heads, head_dim] and [kv_heads, head_dim] twice; there is
    room to read whole vectors behind each.
    """
    for head in range(heads):
        _rotate_head(row + head * head_dim * 4, table_row, rope_dim)
    last = kv_table + (HEADER_FIELDS + (field(kv_table, _SEGMENTS) - 1) * SEGMENT_FIELDS) * 8
    stored = field(kv_table, _SEQ) + index - field(last, _FIRST)
    padded = field(kv_table, _PADDED_DIM)
    for head in range(kv_heads):
        _rotate_head(k + head * head_dim * 4, table_row, rope_dim)
        _store_key(last, head, stored, k + head * head_dim * 4, head_dim, padded)
        _store_value(last, head, stored, v + head * head_dim * 4, head_dim, padded)
