"""One row of one sequence, from the message it came in to the messages it leaves in, as one call from Python.

Reads the rows where the messages have them, runs the role (`layers.py`, a lookup), checks every output, and writes the
row's place in its sequence and the crossings so far into the heads of the outputs. What fails changes nothing that is
kept: the same messages may be computed again in the general way.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from . import fields as f
from . import row_fields as r
from .compiled import intrinsic, kernel
from .machine import copy_bytes, field, monotonic_ns, set_field
from .vector import I16, I32, I64, LANES, VI32, Emitter, const_i32, const_i64

I = types.int64  # noqa: E741 - the one type of the signatures below

_PLACE_BYTES = np.int64(8)  # settled and first, u32 each
_FIRST = np.int64(4)
_MAX_HOP = np.int64(0xFFFF)
_EXPONENT = 0x7F80_0000  # all ones: infinity or NaN


@intrinsic
def _run(typing, address, work, call):
    """Call the unit `layers` by its address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(I32, [I64, I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(I, I, I), codegen


@intrinsic
def _look_up(typing, address, weights, num_blocks, row, out):
    """Call a lookup unit by its address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(I32, [I64] * 4)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[I] * 5), codegen


@intrinsic
def _u32(typing, address):
    """A number of a tensor or of its prefix, little-endian as they are."""

    def codegen(context, builder, signature, args):
        return builder.zext(Emitter(builder).load(args[0], 0, I32), I64)

    return I(I), codegen


@intrinsic
def _hops(typing, address):
    """The crossings that a message tells, u16."""

    def codegen(context, builder, signature, args):
        return builder.zext(Emitter(builder).load(args[0], 0, I16), I64)

    return I(I), codegen


@intrinsic
def _set_hops(typing, address, hops):
    def codegen(context, builder, signature, args):
        Emitter(builder).store(builder.trunc(args[1], I16), args[0], 0)
        return context.get_dummy_value()

    return types.void(I, I), codegen


@intrinsic
def _is_finite(typing, row, width):
    """1 when no value is infinite or NaN. `width` values, any alignment."""

    def codegen(context, builder, signature, args):
        row, width = args
        e = Emitter(builder)
        found = e.variable(ir.Constant(VI32, [0] * LANES))
        full = builder.lshr(width, const_i64(4))
        with cgutils.for_range(builder, full, intp=I64) as vector:
            bits = e.load(row, builder.mul(vector.index, const_i64(LANES * 4)), VI32)
            exponent = builder.and_(bits, const_i32(_EXPONENT))
            is_special = builder.icmp_unsigned("==", exponent, const_i32(_EXPONENT))
            builder.store(builder.or_(builder.load(found), builder.sext(is_special, VI32)), found)
        with cgutils.for_range_slice(builder, builder.shl(full, const_i64(4)), width, const_i64(1), I64) as (at, _):
            bits = e.load(row, builder.shl(at, const_i64(2)), I32)
            exponent = builder.and_(bits, ir.Constant(I32, _EXPONENT))
            is_special = builder.icmp_unsigned("==", exponent, ir.Constant(I32, _EXPONENT))
            lane = builder.insert_element(builder.load(found), builder.sext(is_special, I32), ir.Constant(I32, 0))
            builder.store(builder.or_(builder.load(found), lane), found)
        any_found = builder.bitcast(builder.load(found), ir.IntType(32 * LANES))
        is_zero = builder.icmp_unsigned("==", any_found, ir.Constant(ir.IntType(32 * LANES), 0))
        return builder.zext(is_zero, I64)

    return I(I, I), codegen


@kernel
def pass_row(record, message, other):
    """Carry out a ROW record on one message, or on two: the inputs of its call in order, 0 for none."""
    call, place, data = field(record, r.ROW_CALL), message + field(record, r.ROW_PLACE), field(record, r.ROW_DATA)
    hop = field(record, r.ROW_HOP)
    hops = _hops(message + hop)
    set_field(call, f.CALL_X, message + data)
    if other != 0:
        set_field(call, f.CALL_X2, other + data)
        hops = max(hops, _hops(other + hop))  # a join tells the longest way here
    hops = min(hops + field(record, r.ROW_CROSSING), _MAX_HOP)
    span = field(record, r.ROW_SPAN)
    if span != 0:
        set_field(span, f.SPAN_FIRST, _u32(place + _FIRST))
    began = monotonic_ns()
    lookup = field(record, r.ROW_LOOKUP)
    is_known = True
    if lookup == 0:
        _run(field(record, r.ROW_RUN), field(record, r.ROW_WORK), call)
    else:
        token = _u32(message + data)
        is_known = token < field(record, r.ROW_VOCAB)
        if is_known:
            out = field(record + r.ROW_OUTPUTS * 8, r.OUTPUT_ADDRESS)
            _look_up(lookup, field(record, r.ROW_WEIGHTS), field(record, r.ROW_BLOCKS), token, out)
    took = monotonic_ns() - began if is_known else np.int64(-1)
    for index in range(field(record, r.ROW_NUM_OUTPUTS)):
        output = record + (r.ROW_OUTPUTS + index * r.OUTPUT_FIELDS) * 8
        address = field(output, r.OUTPUT_ADDRESS)
        if _is_finite(address, field(output, r.OUTPUT_WIDTH)) == 0:
            took = np.int64(-1)
        head = address - data
        copy_bytes(head + field(record, r.ROW_PLACE), place, _PLACE_BYTES)
        _set_hops(head + hop, hops)
    set_field(record, r.ROW_TOOK_NS, took)
