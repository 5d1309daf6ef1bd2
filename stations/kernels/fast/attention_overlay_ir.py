"""Vector steps of sealed O(1) layers as intrinsics: a row joins the far sums, landmarks give their weights.

Addresses are int64, in bytes; vectors hold 16 f32. Lanes behind the last landmark have a maximum of −inf, a sum of 0.
"""

from __future__ import annotations

from numba import types
from numba.core import cgutils

from .attention_forms import VECTOR
from .attention_ir import MINUS_INFINITY
from .compiled import intrinsic
from .vector import F32, I64, V32, ZERO, Emitter, const_i64

_I = types.int64


@intrinsic
def copy_strided(typing, target, target_step, source, source_step, count):
    """`count` f32, at any distance from each other on both sides."""

    def codegen(context, builder, signature, args):
        target, target_step, source, source_step, count = args
        e = Emitter(builder)
        with cgutils.for_range(builder, count, intp=I64) as loop:
            value = e.load(source, builder.mul(loop.index, source_step), F32, align=4)
            e.store(value, target, builder.mul(loop.index, target_step), align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I), codegen


@intrinsic
def highest_of(typing, top, vectors):
    """The largest lane of `vectors` vectors: f32."""

    def codegen(context, builder, signature, args):
        top, vectors = args
        e = Emitter(builder)
        best = e.variable(MINUS_INFINITY)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            value = e.load(top, builder.mul(loop.index, const_i64(VECTOR)), V32, align=VECTOR)
            builder.store(e.maximum(builder.load(best), value), best)
        return e.tree(builder.load(best), e.maximum)

    return types.float32(_I, _I), codegen


@intrinsic
def renew_sums(typing, scores, vectors, top, z, kept):
    """Maxima and Z with one row more, in place; scores become the row's weights, `kept` what is left of T."""

    def codegen(context, builder, signature, args):
        scores, vectors, top, z, kept = args
        e = Emitter(builder)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            at = builder.mul(loop.index, const_i64(VECTOR))
            score, before = (e.load(x, at, V32, align=VECTOR) for x in (scores, top))
            highest = e.maximum(before, score)
            is_none = builder.fcmp_ordered("==", highest, MINUS_INFINITY)
            left = builder.select(is_none, ZERO, e.exp(builder.fsub(before, highest)))
            weight = builder.select(is_none, ZERO, e.exp(builder.fsub(score, highest)))
            e.store(highest, top, at, align=VECTOR)
            e.store(e.fma(e.load(z, at, V32, align=VECTOR), left, weight), z, at, align=VECTOR)
            e.store(left, kept, at, align=VECTOR)
            e.store(weight, scores, at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I), codegen


@intrinsic
def renew_values(typing, values, kept, weights, rows, v, blocks):
    """values_b ← weight_b · v + values_b · kept_b for `rows` rows of T, `blocks` vectors each."""

    def codegen(context, builder, signature, args):
        values, kept, weights, rows, v, blocks = args
        e = Emitter(builder)
        wide = builder.mul(blocks, const_i64(VECTOR))
        with cgutils.for_range(builder, rows, intp=I64) as row:
            at = builder.mul(row.index, const_i64(4))
            left, weight = e.broadcast(kept, at), e.broadcast(weights, at)
            target = e.at(values, builder.mul(row.index, wide))
            with cgutils.for_range(builder, blocks, intp=I64) as block:
                column = builder.mul(block.index, const_i64(VECTOR))
                value = builder.fmul(e.load(target, column, V32, align=VECTOR), left)
                value = e.fma(e.load(v, column, V32, align=VECTOR), weight, value)
                e.store(value, target, column, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I), codegen


@intrinsic
def far_weights(typing, u, vectors, top, highest, z, keeps_sign):
    """u ← u · exp(top − highest), first cut off at 0 unless `keeps_sign`; returns u · Z, f32."""

    def codegen(context, builder, signature, args):
        u, vectors, top, highest, z, keeps_sign = args
        e = Emitter(builder)
        shift = e.splat(highest)
        is_signed = builder.icmp_signed("!=", keeps_sign, const_i64(0))
        total = e.variable(ZERO)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            at = builder.mul(loop.index, const_i64(VECTOR))
            value = e.load(u, at, V32, align=VECTOR)
            value = builder.select(is_signed, value, e.maximum(value, ZERO))
            value = builder.fmul(value, e.exp(builder.fsub(e.load(top, at, V32, align=VECTOR), shift)))
            e.store(value, u, at, align=VECTOR)
            builder.store(e.fma(value, e.load(z, at, V32, align=VECTOR), builder.load(total)), total)
        return e.sum(builder.load(total))

    return types.float32(_I, _I, _I, types.float32, _I, _I), codegen


@intrinsic
def scale_vectors(typing, target, vectors, factor):
    """target ← target · factor."""

    def codegen(context, builder, signature, args):
        target, vectors, factor = args
        e = Emitter(builder)
        wide = e.splat(factor)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            at = builder.mul(loop.index, const_i64(VECTOR))
            e.store(builder.fmul(e.load(target, at, V32, align=VECTOR), wide), target, at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, types.float32), codegen
