"""What attention over 8-bit and 4-bit rows shares: numbers become whole, weights and codes are multiplied as bytes.

`docs/kv-cache.md`, *8 bits in whole numbers* and *4 bits in whole numbers*, states what is computed. What is added up
is exact, so neither the instruction nor the order of rows and dims decides a bit. Addresses are int64, in bytes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from stations.kv.table import Form
from stations.kv.whole_numbers import LEAST_TOP, LOT_STEP, LOTS

from .attention_forms import VECTOR, ask_for, strided
from .attention_ir import WIDE, choose
from .compiled import intrinsic
from .dot import dot4
from .limits import CODED_BLOCK, PLANES, WEIGHED_GROUPS
from .vector import F32, I32, I64, LANES, VI8, VI32, Emitter, const_i32, const_i64

LOT_BITS = LOTS.bit_length() - 1
VALUES_AHEAD_BYTES = 12288  # how far before their use values are asked for, line by line
NIBBLES = const_i32(0x0F0F0F0F)
F64 = ir.DoubleType()
V64 = ir.VectorType(F64, LANES)
_INFINITY_BITS = 0x7F800000
_SCALAR_0, _NAN = (ir.Constant(F32, value) for value in (0.0, float("nan")))
_Q8, _Q4 = int(Form.Q8), int(Form.Q4)
_I = types.int64


def step_of(e: Emitter, sizes: ir.Value, steps: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(steps / top, top / steps, whether all are numbers) of the largest of 16 sizes.

    Below a least top the first is 0; where not all are numbers it is 0 and the second NaN.
    """
    b = e.b
    bits = e.tree(sizes, e.larger_size)
    top, count = b.bitcast(bits, F32), ir.Constant(F32, float(steps))
    is_number = b.icmp_signed("<", bits, ir.Constant(I32, _INFINITY_BITS))
    is_used = b.and_(is_number, b.fcmp_ordered(">=", top, ir.Constant(F32, float(LEAST_TOP))))
    inverse = b.select(is_used, b.fdiv(count, top), _SCALAR_0)
    return inverse, b.select(is_number, b.fdiv(top, count), _NAN), is_number


class Lots:
    """Rounds weights of a query, tile after tile, each against its row's lot."""

    def __init__(self, e: Emitter, distance: ir.Value) -> None:
        """distance: of the first tile's first row from the newest that the query sees here."""
        self._e = e
        first = e.b.sub(e.splat(e.b.trunc(distance, I32)), ir.Constant(VI32, list(range(LANES))))
        self._steps = e.variable(e.b.mul(first, const_i32(LOT_STEP)))

    def rounded(self, weights: ir.Value) -> ir.Value:
        """The next tile's weights, f32 in LOTS parts of a step, as whole steps."""
        b = self._e.b
        lot = b.and_(b.load(self._steps), const_i32(LOTS - 1))
        b.store(b.sub(b.load(self._steps), const_i32(LOT_STEP * LANES)), self._steps)
        return b.lshr(b.add(b.fptosi(weights, VI32), lot), const_i32(LOT_BITS))


def store_planes(e: Emitter, whole: ir.Value, target: ir.Value) -> None:
    """A tile's whole weights as bytes, u8 [PLANES, 16]."""
    for plane in range(PLANES):
        part = e.b.lshr(whole, const_i32(8 * (PLANES - 1 - plane)))
        e.store(e.b.trunc(part, VI8), target, plane * LANES, align=LANES)


def _codes(e: Emitter, form: int, words: ir.Value, columns: int, block: ir.Value) -> list[ir.Value]:
    """Codes of 4 rows, dims 16 · block to 16 · (block + columns), as bytes."""
    b = e.b
    if form == _Q8:
        return [e.load(words, c * VECTOR, VI32, align=VECTOR) for c in range(columns)]
    if columns == 1:  # one half of a group of 32 dims
        shift = e.splat(b.trunc(b.shl(b.and_(block, const_i64(1)), const_i64(2)), I32))
        return [b.and_(b.lshr(e.load(words, 0, VI32, align=VECTOR), shift), NIBBLES)]
    pairs = [e.load(words, part * VECTOR, VI32, align=VECTOR) for part in range(columns // 2)]
    return [b.and_(b.lshr(pair, const_i32(4 * half)), NIBBLES) for pair in pairs for half in range(2)]


def _emit_weigh(e: Emitter, form: int, group: int, columns: int, args: list[ir.Value]) -> None:
    values, tiles, blocks, block, planes, planes_stride, w, w_stride, sums, sums_stride, den = args
    b = e.b
    wide = b.mul(blocks, const_i64(VECTOR))  # bytes of a plane of sums
    start_of = b.mul(block, const_i64(VECTOR))
    if form == _Q4:
        word_bytes = b.mul(b.lshr(b.add(blocks, const_i64(1)), const_i64(1)), const_i64(VECTOR))
        begin = b.lshr(block, const_i64(1))
        planes = e.at(planes, b.mul(begin, const_i64(CODED_BLOCK * PLANES)))
        first = e.at(values, b.mul(begin, const_i64(VECTOR)))
    else:
        word_bytes, first = wide, e.at(values, start_of)
    targets = [strided(e, own, wide, PLANES) for own in strided(e, e.at(sums, start_of), sums_stride, group)]
    parts = [[[e.variable(e.load(t, c * VECTOR, VI32, align=VECTOR)) for c in range(columns)] for t in own]
             for own in targets]  # fmt: skip
    mass = [e.variable(e.load(den, 4 * n, F32, align=4)) for n in range(group)]
    with cgutils.for_range(b, tiles, intp=I64) as tile:
        start = e.at(first, b.mul(tile.index, b.shl(word_bytes, const_i64(2))))
        weights = strided(e, e.at(planes, b.mul(tile.index, const_i64(PLANES * LANES))), planes_stride, group)
        masses = strided(e, e.at(w, b.mul(tile.index, const_i64(VECTOR))), w_stride, group)
        for i, words in enumerate(strided(e, start, word_bytes, LANES // 4)):
            lines = columns if form == _Q8 else max(columns // 2, 1)
            ask_for(e, words, VALUES_AHEAD_BYTES, lines * VECTOR)
            codes = _codes(e, form, words, columns, block)
            for n in range(group):
                for plane, chains in enumerate(parts[n]):
                    at = plane * LANES + 4 * i
                    if form == _Q4:  # a weight for each group of 32 dims
                        given = [e.broadcast(weights[n], g * CODED_BLOCK * PLANES + at, I32)
                                 for g in range(max(columns // 2, 1))]  # fmt: skip
                    else:
                        given = [e.broadcast(weights[n], at, I32)]
                    for c, (chain, code) in enumerate(zip(chains, codes, strict=True)):
                        b.store(dot4(e, b.load(chain), given[c // 2 if form == _Q4 else 0], code, 8), chain)
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
    typing, form, group, columns, values, tiles, blocks, block, planes, planes_stride, w, w_stride, sums, sums_stride,
    den,
):  # fmt: skip
    """`columns` (WIDE or 1) vectors of 16 dims from `block` on: Σ whole weight · code joins `group` queries' sums.

    values: the first of `tiles` tiles; planes: u8 [tiles, PLANES, 16] a query, in form Q4 one a group of 32 dims,
    CODED_BLOCK rows apart; sums: i32 [PLANES, padded_dim]; the weights f32 at `w` join den f32 [group], row after row.
    Strides are from query to query.
    """

    def codegen(context, builder, signature, args):
        e = Emitter(builder)

        def body(form):
            def grouped(group):
                choose(e, args[2], (1, WIDE), lambda columns: _emit_weigh(e, form, group, columns, list(args[3:])))

            choose(e, args[1], range(1, WEIGHED_GROUPS + 1), grouped)

        choose(e, args[0], (_Q8, _Q4), body)
        return context.get_dummy_value()

    return types.void(*[_I] * 14), codegen


@intrinsic
def gather_planes(typing, sums, blocks, totals):
    """totals f64 [padded_dim] += the planes' sums, 256 and 1 fold: exact. The sums are zeros again."""

    def codegen(context, builder, signature, args):
        sums, blocks, totals = args
        e, b = Emitter(builder), builder
        plane_bytes = b.mul(blocks, const_i64(VECTOR))
        with cgutils.for_range(b, blocks, intp=I64) as loop:
            at, wide_at = b.mul(loop.index, const_i64(VECTOR)), b.mul(loop.index, const_i64(2 * VECTOR))
            total = e.load(totals, wide_at, V64, align=VECTOR)
            for plane, base in enumerate(strided(e, sums, plane_bytes, PLANES)):
                part = b.sitofp(e.load(base, at, VI32, align=VECTOR), V64)
                weight = ir.Constant(V64, [float(256 ** (PLANES - 1 - plane))] * LANES)
                total = b.fadd(total, b.fmul(part, weight))
                e.store(const_i32(0), base, at, align=VECTOR)
            e.store(total, totals, wide_at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I), codegen
