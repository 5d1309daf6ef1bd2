"""The passes of attention as intrinsics: scores of K tiles, weighted sums of V rows, the softmax between.

Each works on addresses (int64, bytes). `scores` and `weigh` hold one body a storage form (`attention_forms.py`) and
number of queries, 1 to 4; the order of every sum is the same in each. `attention.py` calls them block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .attention_forms import FORMS, VECTOR, ask_for
from .compiled import intrinsic
from .vector import F32, I32, I64, LANES, V32, VI32, ZERO, Emitter, const_f32, const_i64

WIDE = 4  # vectors of a V row that one pass carries, where that many are left
GROUP = 4  # queries at most in one body
SKIP_BELOW = 1e-12  # weights below this become exact zeros, as in the plain version
MINUS_INFINITY = const_f32(float("-inf"))

_I = types.int64


def choose(e: Emitter, value: ir.Value, options: Sequence[int], emit: Callable[[int], None]) -> None:
    """The body of the option that `value` equals."""
    for option in options:
        with e.b.if_then(e.b.icmp_unsigned("==", value, ir.Constant(value.type, option))):
            emit(option)


def _named(names: str, values: Sequence[ir.Value]) -> SimpleNamespace:
    """An intrinsic's arguments by name."""
    return SimpleNamespace(**dict(zip(names.split(), values, strict=True)))


@intrinsic
def scores(typing, form, group, segment, kv_head, tile, tiles, blocks, q, q_stride, scale, out, out_stride):
    """`group` queries (1 to 4) against `tiles` tiles of 16 keys from `tile` on, for one KV head of a segment.

    q: f32 [padded_dim] a query, `q_stride` apart; out: f32 [tiles, 16] a query, `out_stride` apart; blocks =
    padded_dim / 16.
    """

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        a = _named("form group segment kv_head tile tiles blocks q q_stride scale out out_stride", args)

        def body(form):
            choose(e, a.group, range(1, GROUP + 1), lambda group: FORMS[form].emit_scores(e, group, a))

        choose(e, a.form, list(FORMS), body)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I, _I, _I, _I, types.float32, _I, _I), codegen


@intrinsic
def weigh(typing, form, group, segment, kv_head, row, rows, column, columns, blocks, w, w_stride, acc, acc_stride, den):
    """`columns` (WIDE, or 1 for one query) vectors of `rows` V rows from (`row`, `column`) on join `group` sums.

    w: f32 [rows] a query, `w_stride` apart, multiplies the rows and is summed into den f32 [group]; acc: f32 [16 ·
    columns] a query, `acc_stride` apart.
    """

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        a = _named("form group segment kv_head row rows column columns blocks w w_stride acc acc_stride den", args)

        def body(form):
            def wide(columns):
                groups = range(1, GROUP + 1) if columns == WIDE else (1,)
                choose(e, a.group, groups, lambda group: FORMS[form].emit_weigh(e, group, columns, a))

            choose(e, a.columns, (1, WIDE), wide)

        choose(e, a.form, list(FORMS), body)
        return context.get_dummy_value()

    return types.void(*[_I] * 14), codegen


@intrinsic
def start_top(typing, top):
    """The running maxima of one query: −inf in every lane."""

    def codegen(context, builder, signature, args):
        Emitter(builder).store(MINUS_INFINITY, args[0], 0, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I), codegen


@intrinsic
def mask_scores(typing, out, tiles, base, first, upto, softcap, top):
    """Softcap (if > 0), then −inf outside rows [first, upto); the first tile's row is `base`. Maxima by lane in top."""

    def codegen(context, builder, signature, args):
        out, tiles, base, first, upto, softcap, top = args
        e = Emitter(builder)
        lane = ir.Constant(VI32, list(range(LANES)))
        low, high = (e.splat(builder.trunc(x, I32)) for x in (first, upto))
        cap = e.splat(softcap)
        best = e.variable(e.load(top, 0, V32, align=VECTOR))
        value = e.variable(ZERO)
        is_capped = builder.fcmp_ordered(">", softcap, ir.Constant(F32, 0.0))
        with cgutils.for_range(builder, tiles, intp=I64) as tile:
            at = builder.mul(tile.index, const_i64(VECTOR))
            builder.store(e.load(out, at, V32, align=VECTOR), value)
            start = builder.add(base, builder.mul(tile.index, const_i64(LANES)))
            is_edge = builder.or_(
                builder.icmp_signed("<", start, first),
                builder.icmp_signed(">", builder.add(start, const_i64(LANES)), upto),
            )
            with builder.if_then(builder.or_(is_capped, is_edge), likely=False):
                with builder.if_then(is_capped):
                    builder.store(builder.fmul(cap, e.tanh(builder.fdiv(builder.load(value), cap))), value)
                row = builder.add(e.splat(builder.trunc(start, I32)), lane)
                visible = builder.and_(builder.icmp_signed(">=", row, low), builder.icmp_signed("<", row, high))
                builder.store(builder.select(visible, builder.load(value), MINUS_INFINITY), value)
                e.store(builder.load(value), out, at, align=VECTOR)
            builder.store(e.maximum(builder.load(best), builder.load(value)), best)
        e.store(builder.load(best), top, 0, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, types.float32, _I), codegen


@intrinsic
def to_weights(typing, out, tiles, top, sink, den):
    """Masked scores become e = exp(s − max), 0 below SKIP_BELOW; den f32 starts with the sink's e.

    `sink` is the address of the query head's logit, which joins the maximum, or 0.
    """

    def codegen(context, builder, signature, args):
        out, tiles, top, sink, den = args
        e = Emitter(builder)
        largest = e.variable(e.tree(e.load(top, 0, V32, align=VECTOR), e.maximum))
        mass = e.variable(ir.Constant(F32, 0.0))
        with builder.if_then(builder.icmp_unsigned("!=", sink, const_i64(0)), likely=False):
            logit = e.load(sink, 0, F32, align=4)
            builder.store(e.maximum(builder.load(largest), logit), largest)
            share = e.exp(e.splat(builder.fsub(logit, builder.load(largest))))
            builder.store(builder.extract_element(share, ir.Constant(I32, 0)), mass)
        e.store(builder.load(mass), den, 0, align=4)
        shift = e.splat(builder.load(largest))
        with cgutils.for_range(builder, tiles, intp=I64) as tile:
            at = builder.mul(tile.index, const_i64(VECTOR))
            value = e.exp_of_shift(builder.fsub(e.load(out, at, V32, align=VECTOR), shift))
            is_small = builder.fcmp_ordered("<", value, const_f32(SKIP_BELOW))
            e.store(builder.select(is_small, ZERO, value), out, at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I), codegen


@intrinsic
def clear(typing, target, vectors):
    """Zeros in `vectors` vectors."""

    def codegen(context, builder, signature, args):
        target, vectors = args
        e = Emitter(builder)
        with cgutils.for_range(builder, vectors, intp=I64) as index:
            e.store(ZERO, target, builder.mul(index.index, const_i64(VECTOR)), align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I), codegen


@intrinsic
def ask_for_lines(typing, start, lines):
    """Let `lines` lines of 64 bytes from `start` on come into the processor's cache."""

    def codegen(context, builder, signature, args):
        start, lines = args
        e = Emitter(builder)
        with cgutils.for_range(builder, lines, intp=I64) as loop:
            ask_for(e, e.at(start, builder.mul(loop.index, const_i64(VECTOR))), 0, VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I), codegen


def _divisor(e: Emitter, den: ir.Value) -> ir.Value:
    """The denominator, or 1 where no row was visible."""
    mass = e.load(den, 0, F32, align=4)
    is_empty = e.b.fcmp_ordered("==", mass, ir.Constant(F32, 0.0))
    return e.b.select(is_empty, ir.Constant(F32, 1.0), mass)


@intrinsic
def divide_row(typing, source, target, count, den):
    """target = source / den + 0.0, `count` f32; the addition makes −0.0, which only skipped rows could tell, +0.0."""

    def codegen(context, builder, signature, args):
        source, target, count, den = args
        e = Emitter(builder)
        divisor = _divisor(e, den)
        wide = e.splat(divisor)
        full = builder.udiv(count, const_i64(LANES))
        with cgutils.for_range(builder, full, intp=I64) as block:
            at = builder.mul(block.index, const_i64(VECTOR))
            quotient = builder.fdiv(e.load(source, at, V32, align=VECTOR), wide)
            e.store(builder.fadd(quotient, ZERO), target, at, align=4)
        with cgutils.for_range(builder, builder.urem(count, const_i64(LANES)), intp=I64) as lane:
            at = builder.mul(builder.add(builder.mul(full, const_i64(LANES)), lane.index), const_i64(4))
            quotient = builder.fdiv(e.load(source, at, F32, align=4), divisor)
            e.store(builder.fadd(quotient, ir.Constant(F32, 0.0)), target, at, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen


@intrinsic
def add_mass(typing, w, count, den, target):
    """target[j] += w_j / den over `count` rows: f32, unaligned."""

    def codegen(context, builder, signature, args):
        w, count, den, target = args
        e = Emitter(builder)
        divisor = _divisor(e, den)
        with cgutils.for_range(builder, count, intp=I64) as row:
            at = builder.mul(row.index, const_i64(4))
            share = builder.fdiv(e.load(w, at, F32, align=4), divisor)
            e.store(builder.fadd(e.load(target, at, F32, align=4), share), target, at, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen
