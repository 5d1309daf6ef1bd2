"""The inner loops of attention as vector code: scores of K tiles, weighted sums of V rows, the softmax between.

Each intrinsic works on addresses (int64, bytes) and emits one body a storage form and number of queries (1 to 4), so
that a K tile or V row is loaded and widened once for all of them. The order of every sum is written here and is the
same in each body; `attention.py` calls them block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from llvmlite import ir
from numba import types
from numba.core import cgutils

from stations.kv.table import Form, Segment

from .compiled import intrinsic
from .vector import F32, I32, I64, LANES, V16, V32, VI32, ZERO, Emitter, const_f32, const_i64

WIDE = 4  # vectors of a V row that one pass carries, where that many are left
GROUP = 4  # queries at most in one body
CHAINS = 4  # fma chains of a score, dim mod 4
SKIP_BELOW = 1e-12  # weights below this become exact zeros, as in the plain version
VECTOR = LANES * 4
MINUS_INFINITY = const_f32(float("-inf"))

_I = types.int64


def _field(e: Emitter, segment: ir.Value, field: Segment) -> ir.Value:
    return e.load(segment, 8 * int(field), I64, align=8)


def _head_start(e: Emitter, segment: ir.Value, kv_head: ir.Value, what: Segment, stride: Segment) -> ir.Value:
    """Address of one KV head's rows: `what` + kv_head · `stride`."""
    return e.at(_field(e, segment, what), e.b.mul(kv_head, _field(e, segment, stride)))


def _strided(e: Emitter, base: ir.Value, stride: ir.Value, count: int) -> list[ir.Value]:
    return [e.at(base, e.b.mul(stride, const_i64(n))) for n in range(count)]


def _choose(e: Emitter, value: ir.Value, options: Sequence[int], emit: Callable[[int], None]) -> None:
    """The body of the option that `value` equals."""
    for option in options:
        with e.b.if_then(e.b.icmp_unsigned("==", value, ir.Constant(value.type, option))):
            emit(option)


class _Exact:
    """Rows as they came: f32, or f16 widened on load."""

    def __init__(self, form: Form) -> None:
        self.bytes = 4 if form is Form.F32 else 2

    def load(self, e: Emitter, base: ir.Value, vector: int) -> ir.Value:
        """Vector `vector` from `base`, as f32."""
        at = vector * LANES * self.bytes
        if self.bytes == 4:
            return e.load(base, at, V32, align=VECTOR)
        return e.half_to_float(e.load(base, at, V16, align=32))

    def emit_scores(self, e: Emitter, group: int, a: SimpleNamespace) -> None:
        """out[query, tile] = scale · Σ_d q_d k_d for `a.tiles` tiles from `a.tile` on."""
        b = e.b
        factor = e.splat(a.scale)
        queries, outs = _strided(e, a.q, a.q_stride, group), _strided(e, a.out, a.out_stride, group)
        sums = [[e.variable(ZERO) for _ in range(CHAINS)] for _ in range(group)]
        block_bytes = const_i64(LANES * LANES * self.bytes)
        first = _head_start(e, a.segment, a.kv_head, Segment.K, Segment.K_STRIDE)
        first = e.at(first, b.mul(a.tile, b.mul(a.blocks, block_bytes)))
        with cgutils.for_range(b, a.tiles, intp=I64) as tile:
            for chain in (c for chains in sums for c in chains):
                b.store(ZERO, chain)
            start = e.at(first, b.mul(tile.index, b.mul(a.blocks, block_bytes)))
            with cgutils.for_range(b, a.blocks, intp=I64) as block:
                keys = e.at(start, b.mul(block.index, block_bytes))
                at = b.mul(block.index, const_i64(VECTOR))
                for d in range(LANES):
                    key = self.load(e, keys, d)
                    for query, chains in zip(queries, sums, strict=True):
                        chain = chains[d % CHAINS]
                        b.store(e.fma(key, e.broadcast(e.at(query, at), 4 * d), b.load(chain)), chain)
            for out, chains in zip(outs, sums, strict=True):
                c = [b.load(chain) for chain in chains]
                total = b.fadd(b.fadd(c[0], c[1]), b.fadd(c[2], c[3]))
                e.store(b.fmul(total, factor), out, b.mul(tile.index, const_i64(VECTOR)), align=VECTOR)

    def emit_weigh(self, e: Emitter, group: int, columns: int, a: SimpleNamespace) -> None:
        """acc[query] += w_j · v_j and den[query] += w_j over `a.rows` rows from `a.row` on, in order."""
        b = e.b
        weights, targets = _strided(e, a.w, a.w_stride, group), _strided(e, a.acc, a.acc_stride, group)
        sums = [[e.variable(e.load(t, c * VECTOR, V32, align=VECTOR)) for c in range(columns)] for t in targets]
        masses = [e.variable(e.load(a.den, 4 * n, F32, align=4)) for n in range(group)]
        vector_bytes = const_i64(LANES * self.bytes)
        row_bytes = b.mul(a.blocks, vector_bytes)
        first = _head_start(e, a.segment, a.kv_head, Segment.V, Segment.V_STRIDE)
        first = e.at(e.at(first, b.mul(a.row, row_bytes)), b.mul(a.column, vector_bytes))
        with cgutils.for_range(b, a.rows, intp=I64) as row:
            start = e.at(first, b.mul(row.index, row_bytes))
            values = [self.load(e, start, c) for c in range(columns)]
            at = b.mul(row.index, const_i64(4))
            for weight_at, chains, mass in zip(weights, sums, masses, strict=True):
                weight = e.load(weight_at, at, F32, align=4)
                b.store(b.fadd(b.load(mass), weight), mass)
                wide = e.splat(weight)
                for value, chain in zip(values, chains, strict=True):
                    b.store(e.fma(value, wide, b.load(chain)), chain)
        for target, chains in zip(targets, sums, strict=True):
            for c, chain in enumerate(chains):
                e.store(b.load(chain), target, c * VECTOR, align=VECTOR)
        for n, mass in enumerate(masses):
            e.store(b.load(mass), a.den, 4 * n, align=4)


_FORMS = {int(form): _Exact(form) for form in (Form.F32, Form.F16)}


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
            _choose(e, a.group, range(1, GROUP + 1), lambda group: _FORMS[form].emit_scores(e, group, a))

        _choose(e, a.form, list(_FORMS), body)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, _I, _I, _I, _I, types.float32, _I, _I), codegen


@intrinsic
def weigh(typing, form, group, segment, kv_head, row, rows, column, columns, blocks, w, w_stride, acc, acc_stride, den):
    """`columns` (1 or WIDE) vectors of `rows` V rows from (`row`, `column`) on join `group` sums; den f32 [group].

    w: f32 [rows] a query, `w_stride` apart; acc: f32 [16 · columns] a query, `acc_stride` apart.
    """

    def codegen(context, builder, signature, args):
        e = Emitter(builder)
        names = "form group segment kv_head row rows column columns blocks w w_stride acc acc_stride den"
        a = _named(names, args)

        def body(form):
            def wide(columns):
                _choose(e, a.group, range(1, GROUP + 1), lambda group: _FORMS[form].emit_weigh(e, group, columns, a))

            _choose(e, a.columns, (1, WIDE), wide)

        _choose(e, a.form, list(_FORMS), body)
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
            with builder.if_then(is_capped, likely=False):
                builder.store(builder.fmul(cap, e.tanh(builder.fdiv(builder.load(value), cap))), value)
            start = builder.add(base, builder.mul(tile.index, const_i64(LANES)))
            row = builder.add(e.splat(builder.trunc(start, I32)), lane)
            visible = builder.and_(builder.icmp_signed(">=", row, low), builder.icmp_signed("<", row, high))
            masked = builder.select(visible, builder.load(value), MINUS_INFINITY)
            e.store(masked, out, at, align=VECTOR)
            builder.store(e.maximum(builder.load(best), masked), best)
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
            value = e.exp(builder.fsub(e.load(out, at, V32, align=VECTOR), shift))
            is_small = builder.fcmp_ordered("<", value, const_f32(SKIP_BELOW))
            e.store(builder.select(is_small, ZERO, value), out, at, align=VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I), codegen


@intrinsic
def copy_row(typing, source, target, count, blocks):
    """`count` f32 to an aligned row of `blocks` vectors, zeros behind them."""

    def codegen(context, builder, signature, args):
        source, target, count, blocks = args
        e = Emitter(builder)
        full = builder.udiv(count, const_i64(LANES))
        with cgutils.for_range(builder, full, intp=I64) as block:
            at = builder.mul(block.index, const_i64(VECTOR))
            e.store(e.load(source, at, V32, align=4), target, at, align=VECTOR)
        with builder.if_then(builder.icmp_unsigned("<", full, blocks), likely=False):
            tail = builder.mul(full, const_i64(VECTOR))
            e.store(ZERO, target, tail, align=VECTOR)
            with cgutils.for_range(builder, builder.urem(count, const_i64(LANES)), intp=I64) as lane:
                at = builder.add(tail, builder.mul(lane.index, const_i64(4)))
                e.store(e.load(source, at, F32, align=4), target, at, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen


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


@intrinsic
def field(typing, table, index):
    """Field `index` of a table of int64 at address `table`."""

    def codegen(context, builder, signature, args):
        table, index = args
        return Emitter(builder).load(table, builder.mul(index, const_i64(8)), I64, align=8)

    return types.int64(_I, _I), codegen
