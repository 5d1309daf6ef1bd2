"""The passes of attention over 8-bit rows as intrinsics: queries and weights as whole numbers, products with codes.

`docs/kv-cache.md`, *8 bits in whole numbers*, states what is computed; `stations/kv/codes8.py` is the plain version.
What is added up is exact, so neither the instruction nor the order of rows and dims decides a bit. Addresses are
int64, in bytes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .attention_forms import VECTOR, ask_for, strided
from .compiled import intrinsic
from .dot import dot4
from .limits import CODED_GROUPS, WEIGHED_GROUPS
from .vector import F32, I16, I32, I64, LANES, V32, VI8, VI32, ZERO, Emitter, const_i32, const_i64

QUERY_STEPS = 127.0 * 256  # the largest whole number of a query
WEIGHT_STEPS = 255.0 * 256  # the largest of a weight
PLANES = 2  # bytes of a weight, the higher first
LOT_BITS = 8
LOTS = 1 << LOT_BITS  # parts of a step that decide whether a weight is rounded up, against its row's lot
LOT_STEP = 159  # from row to row: odd, near 256 / 1.618, so lots of a few rows lie far apart, those of 256 all differ
WIDE = 4  # vectors of 16 dims of V that one pass carries, where that many are left
KEYS_AHEAD_BYTES = 12288  # how far before their use keys are asked for, line by line
VALUES_AHEAD_BYTES = 8192  # the same of values, a line now and then: processors foresee them within a page
_LEAST_TOP = 2.0**-100
_INFINITY_BITS = 0x7F800000
_KEY_BIAS = 128
_NAN = float("nan")
_V64 = ir.VectorType(ir.DoubleType(), LANES)
_SCALAR_0 = ir.Constant(F32, 0.0)
_I = types.int64


def _has_no_number(e: Emitter, value: ir.Value) -> ir.Value:
    """Which lanes are an infinity or NaN."""
    return e.b.icmp_signed(">=", e.size(value), const_i32(_INFINITY_BITS))


def _any(e: Emitter, lanes: ir.Value) -> ir.Value:
    return e.b.icmp_unsigned("!=", e.b.bitcast(lanes, I16), ir.Constant(I16, 0))


def _step(e: Emitter, top: ir.Value, steps: float, least: float, is_number: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(steps / top, top / steps) of a largest value; (0, …) below `least`, (0, NaN) where not all were numbers."""
    b = e.b
    is_used = b.and_(is_number, b.fcmp_ordered(">=", top, ir.Constant(F32, least)))
    inverse = b.select(is_used, b.fdiv(ir.Constant(F32, steps), top), _SCALAR_0)
    return inverse, b.select(is_number, b.fdiv(top, ir.Constant(F32, steps)), ir.Constant(F32, _NAN))


@intrinsic
def whole_query(typing, q, column, blocks, target):
    """q f32 [padded_dim] ⊙ column (0: ones) as whole numbers within ±QUERY_STEPS.

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

        best, bad = e.variable(ZERO), e.variable(const_i32(0))
        with cgutils.for_range(b, blocks, intp=I64) as loop:
            given = value(loop.index)
            b.store(e.maximum(b.load(best), e.abs(given)), best)
            b.store(b.or_(b.load(bad), b.sext(_has_no_number(e, given), VI32)), bad)
        is_number = b.not_(_any(e, b.icmp_signed("!=", b.load(bad), const_i32(0))))
        inverse, unit = _step(e, e.tree(b.load(best), e.maximum), QUERY_STEPS, _LEAST_TOP, is_number)
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
        for group in range(1, CODED_GROUPS + 1):
            with builder.if_then(builder.icmp_unsigned("==", args[0], const_i64(group))):
                _emit_scores(e, group, list(args[1:]))
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I, _I, types.float32, _I, _I), codegen


def _scaled_weight(e: Emitter, w: ir.Value, scales: ir.Value, at: ir.Value) -> ir.Value:
    """Weights times row scales of a tile; 0 where the weight is, whatever lies in rows that are not visible."""
    b = e.b
    weight = e.load(w, at, V32, align=VECTOR)
    product = b.fmul(weight, e.load(scales, at, V32, align=VECTOR))
    return b.select(b.fcmp_unordered("une", weight, ZERO), product, ZERO)


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
        top = e.tree(b.load(best), e.larger_size)
        is_number = b.icmp_signed("<", top, ir.Constant(I32, _INFINITY_BITS))
        inverse, unit = _step(e, b.bitcast(top, F32), WEIGHT_STEPS, _LEAST_TOP, is_number)
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
        first = b.sub(e.splat(b.trunc(distance, I32)), ir.Constant(VI32, list(range(LANES))))
        steps = e.variable(b.mul(first, const_i32(LOT_STEP)))
        with cgutils.for_range(b, tiles, intp=I64) as loop:
            value = b.fmul(_scaled_weight(e, w, scales, b.mul(loop.index, const_i64(VECTOR))), inverse)
            lot = b.and_(b.load(steps), const_i32(LOTS - 1))
            b.store(b.sub(b.load(steps), const_i32(LOT_STEP * LANES)), steps)
            fine = b.add(b.fptosi(value, VI32), lot)
            at = b.mul(loop.index, const_i64(PLANES * LANES))
            for plane in range(PLANES):
                part = b.lshr(fine, const_i32(LOT_BITS + 8 * (PLANES - 1 - plane)))
                e.store(b.trunc(part, VI8), planes, b.add(at, const_i64(plane * LANES)), align=LANES)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I), codegen


def _emit_weigh(e: Emitter, group: int, columns: int, args: list[ir.Value]) -> None:
    values, tiles, blocks, planes, planes_stride, w, w_stride, sums, sums_stride, den = args
    b = e.b
    word_bytes = b.mul(blocks, const_i64(VECTOR))  # 4 rows of V; of sums, a plane
    targets = [strided(e, own, word_bytes, PLANES) for own in strided(e, sums, sums_stride, group)]
    parts = [[[e.variable(e.load(t, c * VECTOR, VI32, align=VECTOR)) for c in range(columns)] for t in own]
             for own in targets]  # fmt: skip
    mass = [e.variable(e.load(den, 4 * n, F32, align=4)) for n in range(group)]
    with cgutils.for_range(b, tiles, intp=I64) as tile:
        start = e.at(values, b.mul(tile.index, b.shl(word_bytes, const_i64(2))))
        weights = strided(e, e.at(planes, b.mul(tile.index, const_i64(PLANES * LANES))), planes_stride, group)
        masses = strided(e, e.at(w, b.mul(tile.index, const_i64(VECTOR))), w_stride, group)
        ask_for(e, start, VALUES_AHEAD_BYTES, VECTOR)
        for i, words in enumerate(strided(e, start, word_bytes, LANES // 4)):
            codes = [e.load(words, c * VECTOR, VI32, align=VECTOR) for c in range(columns)]
            for n in range(group):
                for plane, chains in enumerate(parts[n]):
                    weight = e.broadcast(weights[n], plane * LANES + 4 * i, I32)
                    for chain, code in zip(chains, codes, strict=True):
                        b.store(dot4(e, b.load(chain), weight, code, 8), chain)
            for row in range(4 * i, 4 * i + 4):
                for n in range(group):
                    b.store(b.fadd(b.load(mass[n]), e.load(masses[n], 4 * row, F32, align=4)), mass[n])
    for n in range(group):
        for target, chains in zip(targets[n], parts[n], strict=True):
            for c, chain in enumerate(chains):
                e.store(b.load(chain), target, c * VECTOR, align=VECTOR)
        e.store(b.load(mass[n]), den, 4 * n, align=4)


@intrinsic
def weigh_words(
    typing, group, columns, values, tiles, blocks, planes, planes_stride, w, w_stride, sums, sums_stride, den
):
    """`columns` (WIDE or 1) vectors of 16 dims: Σ whole weight · code over `tiles` tiles joins `group` queries' sums.

    values: the first tile's codes of these dims; planes: what `whole_weights` wrote; sums: i32 [PLANES, padded_dim];
    the weights f32 at `w` join den f32 [group], row after row. Strides are from query to query.
    """

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        for group in range(1, WEIGHED_GROUPS + 1):
            for columns in (1, WIDE):
                is_body = builder.and_(
                    builder.icmp_unsigned("==", args[0], const_i64(group)),
                    builder.icmp_unsigned("==", args[1], const_i64(columns)),
                )
                with builder.if_then(is_body):
                    _emit_weigh(e, group, columns, list(args[2:]))
        return context.get_dummy_value()

    return types.void(*[_I] * 12), codegen


@intrinsic
def gather_planes(typing, sums, blocks, totals):
    """totals f64 [padded_dim] += the planes' sums, 256 and 1 fold: exact. The sums are zeros again."""

    def codegen(context, builder, signature, args):
        sums, blocks, totals = args
        e, b = Emitter(builder), builder
        plane_bytes = b.mul(blocks, const_i64(VECTOR))
        with cgutils.for_range(b, blocks, intp=I64) as loop:
            at, wide_at = b.mul(loop.index, const_i64(VECTOR)), b.mul(loop.index, const_i64(2 * VECTOR))
            total = e.load(totals, wide_at, _V64, align=VECTOR)
            for plane, base in enumerate(strided(e, sums, plane_bytes, PLANES)):
                part = b.sitofp(e.load(base, at, VI32, align=VECTOR), _V64)
                weight = ir.Constant(_V64, [float(256 ** (PLANES - 1 - plane))] * LANES)
                total = b.fadd(total, b.fmul(part, weight))
                e.store(const_i32(0), base, at, align=VECTOR)
            e.store(total, totals, wide_at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I), codegen


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
            total = e.load(totals, b.mul(loop.index, const_i64(2 * VECTOR)), _V64, align=VECTOR)
            part = b.fmul(b.fptrunc(total, V32), step)
            before = e.load(acc, at, V32, align=VECTOR)
            with b.if_else(is_plain) as (plain, scaled):
                with plain:
                    e.store(b.fadd(before, part), acc, at, align=VECTOR)
                with scaled:
                    e.store(e.fma(part, e.load(factor, at, V32, align=4), before), acc, at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I), codegen
