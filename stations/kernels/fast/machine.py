"""Scalars, copies, atomics and calls by address, for code compiled by numba. Every address is an int64 in bytes.

Sequentially consistent where it says atomic: the claims of `pool.py` rest on it.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .compiled import intrinsic
from .vector import F32, I32, I64, LANES, POINTER, V32, ZERO, Emitter, const_i64

I = types.int64  # noqa: E741 - the one type of the signatures below


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, POINTER)


def _word(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """llvmlite's atomics want to know what a pointer points to."""
    return builder.inttoptr(address, I64.as_pointer())


@intrinsic
def field(typing, base, index):
    """int64 number `index` of the record at `base`."""

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        return e.load(args[0], builder.mul(args[1], const_i64(8)), I64, align=8)

    return I(I, I), codegen


@intrinsic
def set_field(typing, base, index, value):
    """Write int64 number `index` of the record at `base`."""

    def codegen(context, builder, signature, args):
        Emitter(builder).store(args[2], args[0], builder.mul(args[1], const_i64(8)), align=8)
        return context.get_dummy_value()

    return types.void(I, I, I), codegen


@intrinsic
def load_f32(typing, address):
    def codegen(context, builder, signature, args):
        return Emitter(builder).load(args[0], 0, F32)

    return types.float32(I), codegen


@intrinsic
def store_f32(typing, address, value):
    def codegen(context, builder, signature, args):
        Emitter(builder).store(args[1], args[0], 0)
        return context.get_dummy_value()

    return types.void(I, types.float32), codegen


@intrinsic
def copy_bytes(typing, target, source, size):
    """Copy `size` bytes between areas that do not overlap."""

    def codegen(context, builder, signature, args):
        target, source, size = args
        cgutils.raw_memcpy(builder, _pointer(builder, target), _pointer(builder, source), size, itemsize=1)
        return context.get_dummy_value()

    return types.void(I, I, I), codegen


@intrinsic
def copy_row(typing, target, source, width, padded):
    """`width` f32 to a row of `padded` (a multiple of 16), zeros behind. `source` is read up to `width` only."""

    def codegen(context, builder, signature, args):
        target, source, width, padded = args
        e = Emitter(builder)
        full = builder.lshr(width, const_i64(4))
        with cgutils.for_range(builder, full, intp=I64) as vector:
            at = builder.mul(vector.index, const_i64(LANES * 4))
            e.store(e.load(source, at, V32), target, at, align=4)
        with cgutils.for_range_slice(builder, full, builder.lshr(padded, const_i64(4)), const_i64(1), I64) as (at, _):
            e.store(ZERO, target, builder.mul(at, const_i64(LANES * 4)), align=4)
        done = builder.shl(full, const_i64(4))
        with cgutils.for_range_slice(builder, done, width, const_i64(1), I64) as (at, _):
            offset = builder.shl(at, const_i64(2))
            e.store(e.load(source, offset, F32), target, offset, align=4)
        return context.get_dummy_value()

    return types.void(I, I, I, I), codegen


@intrinsic(prefer_literal=True)
def stack_bytes(typing, size):
    """The address of `size` (a literal) bytes on the stack, at a multiple of 64."""

    def codegen(context, builder, signature, args):
        area = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(8), size.literal_value))
        area.align = 64
        return builder.ptrtoint(area, I64)

    return I(size), codegen


def _call_unit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
    """Call a unit's entry (`compiler.py`) by its address, the first of `args`; its status is always 0."""
    kind = ir.FunctionType(I32, [I64] * (len(args) - 1))
    builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])


@intrinsic
def call_product(typing, address, weights, num_blocks, lo, hi, x, rows, y, y_stride, segments, first, end):
    """Call a product kernel (`product.py`) by its address."""

    def codegen(context, builder, signature, args):
        _call_unit(builder, args)
        return context.get_dummy_value()

    return types.void(*[I] * 12), codegen


@intrinsic
def call_attend(typing, address, kv_table, kv_head, heads, q, q_stride, out, out_stride, rows, seen, scale, scratch):
    """Call the attention kernel (`attend_unit.py`) by its address; `scale` is the address of an f32."""

    def codegen(context, builder, signature, args):
        _call_unit(builder, args)
        return context.get_dummy_value()

    return types.void(*[I] * 12), codegen


@intrinsic
def atomic_load(typing, address):
    def codegen(context, builder, signature, args):
        return builder.load_atomic(_word(builder, args[0]), "seq_cst", 8)

    return I(I), codegen


@intrinsic
def atomic_store(typing, address, value):
    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], _word(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(I, I), codegen


@intrinsic
def compare_and_swap(typing, address, expected, value):
    """Atomic; True when the word was `expected` and is `value` now."""

    def codegen(context, builder, signature, args):
        result = builder.cmpxchg(_word(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(I, I, I), codegen


@intrinsic
def spin_pause(typing):
    """A few tens of nanoseconds in which another hardware thread may run."""

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        if e.target.is_x86:
            e.call("llvm.x86.sse2.pause", ir.VoidType())
        elif e.target.is_arm:
            e.call("llvm.aarch64.hint", ir.VoidType(), ir.Constant(I32, 1))
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def yield_core(typing):
    """Let another thread have the core (sched_yield)."""

    def codegen(context, builder, signature, args):
        Emitter(builder).call("sched_yield", I32)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def monotonic_ns(typing):
    """The monotonic clock in nanoseconds (clock_gettime)."""

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        spec = cgutils.alloca_once(builder, ir.ArrayType(I64, 2))
        e.call("clock_gettime", I32, ir.Constant(I32, e.target.monotonic_clock), spec)
        seconds = builder.load(builder.gep(spec, [ir.Constant(I32, 0), ir.Constant(I32, 0)]))
        nanoseconds = builder.load(builder.gep(spec, [ir.Constant(I32, 0), ir.Constant(I32, 1)]))
        return builder.add(builder.mul(seconds, const_i64(1_000_000_000)), nanoseconds)

    return I(), codegen


def _library_call(name: str, num_pointers: int) -> Callable[..., None]:
    @intrinsic
    def call(typing, first, second):
        """A function of the C library on one or two addresses (null for 0)."""

        def codegen(context, builder, signature, args):
            pointers = [_pointer(builder, a) for a in args[:num_pointers]]
            Emitter(builder).call(name, I32, *pointers)
            return context.get_dummy_value()

        return types.void(I, I), codegen

    return call


mutex_init = _library_call("pthread_mutex_init", 2)
mutex_lock = _library_call("pthread_mutex_lock", 1)
mutex_unlock = _library_call("pthread_mutex_unlock", 1)
condition_init = _library_call("pthread_cond_init", 2)
condition_wait = _library_call("pthread_cond_wait", 2)
condition_broadcast = _library_call("pthread_cond_broadcast", 1)
