"""The passes of attention over 4-bit rows as intrinsics: whole numbers, as over 8-bit rows, a scale a group.

`docs/kv-cache.md`, *4 bits in whole numbers*, states what is computed; `stations/kv/codes4.py` is the plain version.
Codes count from their middle, 7.5: they stand for middle + scale · (code − 7.5), middle = minimum + 7.5 · scale.
Addresses are int64, in bytes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from stations.kv.whole_numbers import LEVEL_STEPS, LOTS, QUERY4_STEPS, WEIGHT_STEPS

from .attention_forms import VECTOR, ask_for, strided
from .attention_ir import choose
from .attention_whole_ir import Lots, step_of, store_planes
from .compiled import intrinsic
from .dot import dot4
from .limits import CODED_GROUPS, LEVELS, PLANES
from .vector import F32, I32, I64, LANES, V16, V32, VI8, VI32, ZERO, Emitter, const_f32, const_i32, const_i64

KEYS_AHEAD_BYTES = 4096  # how far before their use keys are asked for
HALF_BYTES = 32  # 16 numbers in f16
TWICE_MIDDLE = 15
WEIGHTS_AT, LEVELS_AT, TOTALS_AT = 0, VECTOR, 2 * VECTOR
WEIGHT_TOTAL, LEVEL_TOTAL = 0, 8  # f64
WEIGHT_INVERSE, WEIGHT_UNIT, LEVEL_INVERSE, LEVEL_UNIT = 16, 20, 24, 28  # f32
_MIDDLE = const_f32(7.5)
_NIBBLES = const_i32(0x0F0F0F0F)
_FOUR = const_i32(4)
_SIDE_BY_SIDE = [8 * word + 2 * i + half for word in range(2) for half in range(2) for i in range(4)]
_F64 = ir.DoubleType()
_V64, _V_I64 = (ir.VectorType(kind, LANES) for kind in (_F64, I64))
_I = types.int64


def _middles(e: Emitter, scales: ir.Value, minima: ir.Value, at: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(scales, middles) of 16 numbers in f16 each."""
    scale, minimum = (e.half_to_float(e.load(base, at, V16, align=HALF_BYTES)) for base in (scales, minima))
    return scale, e.fma(_MIDDLE, scale, minimum)


class _Queries:
    """What queries of one pass are in a group of 32 rows: whole numbers in `spare`, units, sums and levels."""

    def __init__(self, e: Emitter, group: int, q: ir.Value, spare: ir.Value, q_stride: ir.Value) -> None:
        self.e, self.group = e, group
        self.given, self.whole = strided(e, q, q_stride, group), strided(e, spare, q_stride, group)
        self.units = [e.variable(ZERO) for _ in range(group)]
        self.sums = [e.variable(const_i32(0)) for _ in range(group)]
        self.levels = [e.variable(ZERO) for _ in range(group)]
        self.tops = [e.variable(const_i32(0)) for _ in range(group)]

    def prepare(self, scales: ir.Value, minima: ir.Value, blocks: ir.Value) -> None:
        e, b = self.e, self.e.b
        for slot in self.levels:
            b.store(ZERO, slot)
        for slot in (*self.sums, *self.tops):
            b.store(const_i32(0), slot)
        with cgutils.for_range(b, blocks, intp=I64) as block:
            at = b.mul(block.index, const_i64(VECTOR))
            scale, middle = _middles(e, scales, minima, b.mul(block.index, const_i64(HALF_BYTES)))
            for n in range(self.group):
                query = e.load(self.given[n], at, V32, align=VECTOR)
                product = b.fmul(query, scale)
                e.store(product, self.whole[n], at, align=VECTOR)
                b.store(e.fma(query, middle, b.load(self.levels[n])), self.levels[n])
                b.store(e.larger_size(e.size(product), b.load(self.tops[n])), self.tops[n])
        inverses = []
        for n in range(self.group):
            inverse, unit, is_number = step_of(e, b.load(self.tops[n]), QUERY4_STEPS)
            inverses.append((e.splat(inverse), e.splat(is_number)))
            b.store(e.splat(b.fmul(unit, ir.Constant(F32, 0.5))), self.units[n])
            b.store(e.splat(e.sum(b.load(self.levels[n]))), self.levels[n])
        with cgutils.for_range(b, blocks, intp=I64) as block:
            at, byte_at = b.mul(block.index, const_i64(VECTOR)), b.mul(block.index, const_i64(LANES))
            for n, (inverse, is_number) in enumerate(inverses):
                product = b.fmul(e.load(self.whole[n], at, V32, align=VECTOR), inverse)
                whole = b.fptosi(e.round(b.select(is_number, product, ZERO)), VI32)
                b.store(b.add(b.load(self.sums[n]), whole), self.sums[n])
                order = ir.Constant(VI32, _SIDE_BY_SIDE)
                turned = b.shuffle_vector(b.trunc(whole, VI8), ir.Constant(VI8, ir.Undefined), order)
                e.store(turned, self.whole[n], byte_at, align=LANES)  # of a block read before: bytes fall behind words
        for n in range(self.group):
            total = b.mul(e.tree(b.load(self.sums[n]), b.add), ir.Constant(I32, -TWICE_MIDDLE))
            b.store(e.splat(total), self.sums[n])


def _emit_scores(e: Emitter, group: int, args: list[ir.Value]) -> None:
    keys, scales, minima, tile, tiles, blocks, q, q_stride, scale, out, out_stride, spare = args
    b = e.b
    factor = e.splat(scale)
    outs = strided(e, out, out_stride, group)
    queries = _Queries(e, group, q, spare, q_stride)
    chains = [[e.variable(const_i32(0)) for _ in range(2)] for _ in range(group)]
    block_bytes = const_i64(2 * VECTOR)  # two words of 8 dims for each of 16 rows
    tile_bytes, group_bytes = b.mul(blocks, block_bytes), b.mul(blocks, const_i64(HALF_BYTES))
    first = e.at(keys, b.mul(tile, tile_bytes))
    with cgutils.for_range(b, tiles, intp=I64) as loop:
        here = b.add(tile, loop.index)
        starts_group = b.icmp_unsigned("==", b.and_(here, const_i64(1)), const_i64(0))
        with b.if_then(b.or_(starts_group, b.icmp_unsigned("==", loop.index, const_i64(0)))):
            at = b.mul(b.lshr(here, const_i64(1)), group_bytes)
            queries.prepare(e.at(scales, at), e.at(minima, at), blocks)
        for pair in chains:
            for chain in pair:
                b.store(const_i32(0), chain)
        start = e.at(first, b.mul(loop.index, tile_bytes))
        with cgutils.for_range(b, blocks, intp=I64) as block:
            words = e.at(start, b.mul(block.index, block_bytes))
            ask_for(e, words, KEYS_AHEAD_BYTES, 2 * VECTOR)
            at = b.mul(block.index, const_i64(LANES))
            for half in range(2):
                word = e.load(words, half * VECTOR, VI32, align=VECTOR)
                codes = b.and_(word, _NIBBLES), b.and_(b.lshr(word, _FOUR), _NIBBLES)
                for n in range(group):
                    for part in range(2):
                        whole = e.broadcast(e.at(queries.whole[n], at), 8 * half + 4 * part, I32)
                        b.store(dot4(e, b.load(chains[n][part]), codes[part], whole, 4), chains[n][part])
        for n in range(group):
            total = b.add(b.load(chains[n][0]), b.load(chains[n][1]))
            centred = b.add(b.shl(total, const_i32(1)), b.load(queries.sums[n]))
            score = e.fma(b.sitofp(centred, V32), b.load(queries.units[n]), b.load(queries.levels[n]))
            e.store(b.fmul(score, factor), outs[n], b.mul(loop.index, const_i64(VECTOR)), align=VECTOR)


@intrinsic
def nibble_scores(typing, group, keys, scales, minima, tile, tiles, blocks, q, q_stride, scale, out, out_stride, spare):
    """`group` queries (1 to CODED_GROUPS) against `tiles` tiles of 16 keys from `tile` on.

    keys, scales, minima: of the first tile stored; q: f32 [padded_dim], `q_stride` apart; spare: as large; out: f32
    [tiles, 16] a query, `out_stride` apart, scale · (unit / 2 · (2 Σ whole · code − 15 Σ whole) + Σ q · middle).
    """

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        choose(e, args[0], range(1, CODED_GROUPS + 1), lambda group: _emit_scores(e, group, list(args[1:])))
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I, _I, _I, _I, types.float32, _I, _I, _I), codegen


def _products(
    e: Emitter, w: ir.Value, at: ir.Value, scales: ir.Value, minima: ir.Value, half_at: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """A tile's weights times row scales, times middles; 0 where the weight is, whatever lies in rows not visible."""
    b = e.b
    weight = e.load(w, at, V32, align=VECTOR)
    is_seen = b.fcmp_unordered("une", weight, ZERO)
    scale, middle = _middles(e, scales, minima, half_at)
    return b.select(is_seen, b.fmul(weight, scale), ZERO), b.select(is_seen, b.fmul(weight, middle), ZERO)


@intrinsic
def level_steps(typing, w, scales, minima, tile_bytes, tiles, target):
    """Of one group of 32 dims: what turns weights and levels of `tiles` tiles into whole numbers, to f32 of `target`.

    scales, minima: f16 [16] a tile, `tile_bytes` apart.
    """

    def codegen(context, builder, signature, args):
        w, scales, minima, tile_bytes, tiles, target = args
        e, b = Emitter(builder), builder
        tops = [e.variable(const_i32(0)) for _ in range(2)]
        with cgutils.for_range(b, tiles, intp=I64) as loop:
            half_at = b.mul(loop.index, tile_bytes)
            products = _products(e, w, b.mul(loop.index, const_i64(VECTOR)), scales, minima, half_at)
            for product, top in zip(products, tops, strict=True):
                b.store(e.larger_size(e.size(product), b.load(top)), top)
        steps = [(WEIGHT_STEPS, float(LOTS), 0.5, WEIGHT_INVERSE), (LEVEL_STEPS, 1.0, 1.0, LEVEL_INVERSE)]
        for top, (count, more, less, at) in zip(tops, steps, strict=True):
            inverse, unit, _ = step_of(e, b.load(top), count)
            e.store(b.fmul(inverse, ir.Constant(F32, more)), target, at, align=4)
            e.store(b.fmul(unit, ir.Constant(F32, less)), target, at + 4, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I), codegen


@intrinsic
def whole_levels(typing, w, scales, minima, tile_bytes, tiles, distance, own, planes):
    """Weights of one group of 32 dims as whole numbers, u8 [tiles, PLANES, 16]; they and levels join lanes of `own`.

    distance: of the first tile's first row from the newest that the query sees here; own: LEVELS vectors.
    """

    def codegen(context, builder, signature, args):
        w, scales, minima, tile_bytes, tiles, distance, own, planes = args
        e, b = Emitter(builder), builder
        inverse, level_inverse = (e.broadcast(own, TOTALS_AT + at) for at in (WEIGHT_INVERSE, LEVEL_INVERSE))
        lots = Lots(e, distance)
        sums = [e.variable(e.load(own, at, VI32, align=VECTOR)) for at in (WEIGHTS_AT, LEVELS_AT)]
        with cgutils.for_range(b, tiles, intp=I64) as loop:
            weight_at, half_at = b.mul(loop.index, const_i64(VECTOR)), b.mul(loop.index, tile_bytes)
            product, level = _products(e, w, weight_at, scales, minima, half_at)
            whole = lots.rounded(b.fmul(product, inverse))
            store_planes(e, whole, e.at(planes, b.mul(loop.index, const_i64(PLANES * LANES))))
            for value, total in ((whole, sums[0]), (b.fptosi(e.round(b.fmul(level, level_inverse)), VI32), sums[1])):
                b.store(b.add(b.load(total), value), total)
        for total, at in zip(sums, (WEIGHTS_AT, LEVELS_AT), strict=True):
            e.store(b.load(total), own, at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(*[_I] * 8), codegen


@intrinsic
def gather_levels(typing, own):
    """Lanes of whole weights and levels join their totals, f64, and are zeros again: exact."""

    def codegen(context, builder, signature, args):
        e, b = Emitter(builder), builder
        for at, total_at in ((WEIGHTS_AT, WEIGHT_TOTAL), (LEVELS_AT, LEVEL_TOTAL)):
            lanes = e.tree(b.sext(e.load(args[0], at, VI32, align=VECTOR), _V_I64), b.add)
            total = e.load(args[0], TOTALS_AT + total_at, _F64, align=8)
            e.store(b.fadd(total, b.sitofp(lanes, _F64)), args[0], TOTALS_AT + total_at, align=8)
            e.store(const_i32(0), args[0], at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I), codegen


@intrinsic
def fold_levels(typing, acc, totals, levels, blocks):
    """acc += f32(2 · total − 15 · whole weights) · half a unit, the product fused, then levels · unit, fused."""

    def codegen(context, builder, signature, args):
        acc, totals, levels, blocks = args
        e, b = Emitter(builder), builder
        with cgutils.for_range(b, blocks, intp=I64) as loop:
            at = b.mul(loop.index, const_i64(VECTOR))
            own = e.at(levels, b.mul(b.lshr(loop.index, const_i64(1)), const_i64(LEVELS * VECTOR)))
            own = e.at(own, TOTALS_AT)
            weights = b.fmul(e.load(own, WEIGHT_TOTAL, _F64, align=8), ir.Constant(_F64, -float(TWICE_MIDDLE)))
            total = e.load(totals, b.mul(loop.index, const_i64(2 * VECTOR)), _V64, align=VECTOR)
            centred = b.fptrunc(b.fadd(b.fadd(total, total), e.splat(weights)), V32)
            level = e.splat(b.fptrunc(e.load(own, LEVEL_TOTAL, _F64, align=8), F32))
            part = e.fma(centred, e.broadcast(own, WEIGHT_UNIT), e.load(acc, at, V32, align=VECTOR))
            e.store(e.fma(level, e.broadcast(own, LEVEL_UNIT), part), acc, at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen
