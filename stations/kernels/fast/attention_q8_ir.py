"""The passes of attention over 8-bit rows as intrinsics: queries and weights as whole numbers, products with codes.

`docs/kv-cache.md`, *8 bits in whole numbers*, states what is computed; `stations/kv/codes8.py` is the plain version.
What is added up is exact, so neither the instruction nor the order of rows and dims decides a bit. Addresses are
int64, in bytes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from stations.kv.whole_numbers import LOTS, QUERY8_STEPS, WEIGHT_STEPS

from .attention_forms import VECTOR, ask_for, strided
from .attention_ir import choose
from .attention_whole_ir import V64, Lots, step_of, store_planes
from .compiled import intrinsic
from .dot import dot4
from .limits import CODED_GROUPS, PLANES
from .vector import F32, I32, I64, LANES, V32, VI8, VI32, ZERO, Emitter, const_i32, const_i64

KEYS_AHEAD_BYTES = 12288  # how far before their use keys are asked for, line by line
_KEY_BIAS = 128
_I = types.int64


@intrinsic
def whole_query(typing, q, column, blocks, target):
    """q f32 [padded_dim] ⊙ column (0: ones) as whole numbers within ±QUERY8_STEPS.

    target, as large as q: i8 [padded_dim] the high bytes, i8 [padded_dim] the low ones, of high · 256 + low; i32
    [groups] −128 times the group's sum; behind 3 · padded_dim bytes the unit, f32.
    """

    def codegen(context, builder, signature, args):
        q, column, blocks, target = args
        e, b = Emitter(builder), builder
        padded = b.mul(blocks, const_i64(LANES))
        is_plain = b.icmp_unsigned("==", column, const_i64(0))

        def value(block):
            at = b.mul(block, const_i64(VECTOR))
            given = e.variable(e.load(q, at, V32, align=4))
            with b.if_then(b.not_(is_plain)):
                b.store(b.fmul(b.load(given), e.load(column, at, V32, align=4)), given)
            return b.load(given)

        best = e.variable(const_i32(0))
        with cgutils.for_range(b, blocks, intp=I64) as loop:
            b.store(e.larger_size(e.size(value(loop.index)), b.load(best)), best)
        inverse, unit, is_number = step_of(e, b.load(best), QUERY8_STEPS)
        e.store(unit, target, b.mul(padded, const_i64(3)), align=4)
        used, factor = e.splat(is_number), e.splat(inverse)
        low_at, sums_at = e.at(target, padded), e.at(target, b.mul(padded, const_i64(2)))
        with cgutils.for_range(b, blocks, intp=I64) as loop:
            scaled = b.select(used, b.fmul(value(loop.index), factor), ZERO)
            whole = b.fptosi(e.round(scaled), VI32)
            at = b.mul(loop.index, const_i64(LANES))
            high = b.ashr(b.add(whole, const_i32(128)), const_i32(8))
            e.store(b.trunc(high, VI8), target, at, align=LANES)
            e.store(b.trunc(whole, VI8), low_at, at, align=LANES)
            total = b.mul(e.tree(whole, b.add), ir.Constant(I32, -_KEY_BIAS))
            sum_at = b.shl(b.lshr(loop.index, const_i64(1)), const_i64(2))
            is_second = b.icmp_unsigned("!=", b.and_(loop.index, const_i64(1)), const_i64(0))
            with b.if_then(is_second):
                first = e.load(sums_at, sum_at, I32, align=4)
                e.store(b.add(first, total), sums_at, sum_at, align=4)
            with b.if_then(b.not_(is_second)):
                e.store(total, sums_at, sum_at, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen


def _emit_scores(e: Emitter, group: int, args: list[ir.Value]) -> None:
    keys, scales, tiles, blocks, q, q_stride, scale, out, out_stride = args
    b = e.b
    factor, padded = e.splat(scale), b.mul(blocks, const_i64(LANES))
    queries, outs = strided(e, q, q_stride, group), strided(e, out, out_stride, group)
    lows = [e.at(query, padded) for query in queries]
    sums = [e.at(low, padded) for low in lows]
    units = [e.broadcast(e.at(part, padded), 0) for part in sums]
    chains = 2 if group == 1 else 1  # as many sums at once as hide an instruction's latency
    high = [[e.variable(const_i32(0)) for _ in range(chains)] for _ in range(group)]
    low = [[e.variable(const_i32(0)) for _ in range(chains)] for _ in range(group)]
    totals = [e.variable(ZERO) for _ in range(group)]
    groups = b.lshr(b.add(blocks, const_i64(1)), const_i64(1))
    tile_bytes, scale_bytes = b.mul(padded, const_i64(LANES)), b.mul(groups, const_i64(VECTOR))
    with cgutils.for_range(b, tiles, intp=I64) as tile:
        start = e.at(keys, b.mul(tile.index, tile_bytes))
        tile_scales = e.at(scales, b.mul(tile.index, scale_bytes))
        for total in totals:
            b.store(ZERO, total)
        ask_for(e, tile_scales, KEYS_AHEAD_BYTES // 8, 2 * VECTOR)
        with cgutils.for_range(b, groups, intp=I64) as part:
            sum_at = b.shl(part.index, const_i64(2))
            for n in range(group):
                for chain in high[n] + low[n][1:]:
                    b.store(const_i32(0), chain)
                b.store(e.broadcast(sums[n], sum_at, I32), low[n][0])
            begin = b.shl(part.index, const_i64(1))
            left = b.sub(blocks, begin)
            end = b.add(begin, b.select(b.icmp_signed("<", left, const_i64(2)), left, const_i64(2)))
            with cgutils.for_range_slice(b, begin, end, const_i64(1), I64) as (block, _):
                words = e.at(start, b.mul(block, const_i64(LANES * LANES)))
                ask_for(e, words, KEYS_AHEAD_BYTES, LANES * LANES)
                at = b.mul(block, const_i64(LANES))
                for i in range(LANES // 4):
                    codes = e.load(words, VECTOR * i, VI32, align=VECTOR)
                    for n in range(group):
                        for address, sums_of in ((queries[n], high[n]), (lows[n], low[n])):
                            chain = sums_of[i % chains]
                            word = e.broadcast(e.at(address, at), 4 * i, I32)
                            b.store(dot4(e, b.load(chain), codes, word, 8), chain)
            row_scales = e.load(tile_scales, b.mul(part.index, const_i64(VECTOR)), V32, align=VECTOR)
            for n in range(group):
                upper, lower = (_total(e, chain) for chain in (high[n], low[n]))
                whole = b.add(b.shl(upper, const_i32(8)), lower)
                b.store(e.fma(b.sitofp(whole, V32), row_scales, b.load(totals[n])), totals[n])
        for target, total, unit in zip(outs, totals, units, strict=True):
            score = b.fmul(b.fmul(b.load(total), unit), factor)
            e.store(score, target, b.mul(tile.index, const_i64(VECTOR)), align=VECTOR)


def _total(e: Emitter, chains: list[ir.Value]) -> ir.Value:
    total = e.b.load(chains[0])
    for chain in chains[1:]:
        total = e.b.add(total, e.b.load(chain))
    return total


@intrinsic
def coded_scores(typing, group, keys, scales, tiles, blocks, q, q_stride, scale, out, out_stride):
    """`group` queries (1 to CODED_GROUPS) against `tiles` tiles of 16 keys.

    keys: the first tile's codes, scales its scales f32 [groups, 16]; q: what `whole_query` wrote, `q_stride` apart;
    out: f32 [tiles, 16] a query, `out_stride` apart, scale · unit · Σ_groups scale · Σ whole · code.
    """

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        choose(e, args[0], range(1, CODED_GROUPS + 1), lambda group: _emit_scores(e, group, list(args[1:])))
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I, _I, types.float32, _I, _I), codegen


def _scaled_weight(e: Emitter, w: ir.Value, scales: ir.Value, at: ir.Value) -> ir.Value:
    """Weights times row scales of a tile; 0 where the weight is, whatever lies in rows that are not visible."""
    b = e.b
    weight = e.load(w, at, V32, align=VECTOR)
    product = b.fmul(weight, e.load(scales, at, V32, align=VECTOR))
    return b.select(b.fcmp_unordered("une", weight, ZERO), product, ZERO)


@intrinsic
def weight_step(typing, w, scales, tiles, target):
    """Of the largest weight times row scale: WEIGHT_STEPS / it · LOTS to f32 target[0], it / WEIGHT_STEPS to [1]."""

    def codegen(context, builder, signature, args):
        w, scales, tiles, target = args
        e, b = Emitter(builder), builder
        best = e.variable(const_i32(0))
        with cgutils.for_range(b, tiles, intp=I64) as loop:
            value = _scaled_weight(e, w, scales, b.mul(loop.index, const_i64(VECTOR)))
            b.store(e.larger_size(e.size(value), b.load(best)), best)
        inverse, unit, _ = step_of(e, b.load(best), WEIGHT_STEPS)
        e.store(b.fmul(inverse, ir.Constant(F32, float(LOTS))), target, 0, align=4)
        e.store(unit, target, 4, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen


@intrinsic
def whole_weights(typing, w, scales, tiles, distance, step, planes):
    """Weights times row scales of `tiles` tiles as whole numbers up to WEIGHT_STEPS: u8 [tiles, PLANES, 16].

    distance: of the first tile's first row from the newest that the query sees here.
    """

    def codegen(context, builder, signature, args):
        w, scales, tiles, distance, step, planes = args
        e, b = Emitter(builder), builder
        inverse = e.broadcast(step, 0)
        lots = Lots(e, distance)
        with cgutils.for_range(b, tiles, intp=I64) as loop:
            value = b.fmul(_scaled_weight(e, w, scales, b.mul(loop.index, const_i64(VECTOR))), inverse)
            store_planes(e, lots.rounded(value), e.at(planes, b.mul(loop.index, const_i64(PLANES * LANES))))
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I), codegen


@intrinsic
def fold_totals(typing, acc, totals, unit, factor, blocks):
    """acc += f32(totals) · unit · factor, the last product fused; `factor` 0: none."""

    def codegen(context, builder, signature, args):
        acc, totals, unit, factor, blocks = args
        e, b = Emitter(builder), builder
        is_plain = b.icmp_unsigned("==", factor, const_i64(0))
        step = e.broadcast(unit, 0)
        with cgutils.for_range(b, blocks, intp=I64) as loop:
            at = b.mul(loop.index, const_i64(VECTOR))
            total = e.load(totals, b.mul(loop.index, const_i64(2 * VECTOR)), V64, align=VECTOR)
            part = b.fmul(b.fptrunc(total, V32), step)
            before = e.load(acc, at, V32, align=VECTOR)
            with b.if_else(is_plain) as (plain, scaled):
                with plain:
                    e.store(b.fadd(before, part), acc, at, align=VECTOR)
                with scaled:
                    e.store(e.fma(part, e.load(factor, at, V32, align=4), before), acc, at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I), codegen
