"""Attention over a layer's stored rows in compiled code: exact rows in f32 and f16, decode and chunks alike.

The meaning is `stations/kv/attend.py`'s; the order of every sum is fixed here (`docs/numerics.md`, *Attention*): a
score is four fma chains over head_dim (dim mod 4) combined (0+1)+(2+3), times the scale; a row's weights join the
denominator and the values one by one in ascending order. Nothing depends on how many queries share a pass over K and
V, nor on where rows lie: queries are computed side by side only to load each K tile and V row once.

Compiled code works on addresses: a layer's `table` (`stations/kv/table.py`) and one scratch area a thread.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from stations.kv.table import HEADER_FIELDS, SEGMENT_FIELDS, Form, Header, Segment

from .vector import F32, I32, I64, LANES, V16, V32, VI32, ZERO, Emitter, const_f32, const_i64

MAX_QUERIES = 16  # queries (rows × heads of one KV head) that share a pass; bounds the scratch
ROW_BLOCK = 64  # keys or values handled for every query before the next ones are loaded: they stay in L1
SKIP_BELOW = 1e-12  # weights below this become exact zeros, as in the plain version
COLUMNS = 4  # vectors of a V row that the wide kernel carries

_JIT = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy"}
_I = types.int64
_LINE = 64
_VECTOR = LANES * 4
_F32, _F16 = int(Form.F32), int(Form.F16)
_HEAD_DIM, _PADDED_DIM, _SEGMENTS = int(Header.HEAD_DIM), int(Header.PADDED_DIM), int(Header.SEGMENTS)
_FIRST, _ROWS, _K_FORM, _V_FORM = int(Segment.FIRST), int(Segment.ROWS), int(Segment.K_FORM), int(Segment.V_FORM)
_K, _K_STRIDE, _V, _V_STRIDE = int(Segment.K), int(Segment.K_STRIDE), int(Segment.V), int(Segment.V_STRIDE)


def scratch_bytes(keys: int, padded_dim: int) -> int:
    """Scratch of one thread for rows that see up to `keys` stored rows. At 32,768 keys of 64 dims: 2.1 MB."""
    weights = MAX_QUERIES * _weights_stride(keys)
    return weights + 2 * MAX_QUERIES * padded_dim * 4 + (MAX_QUERIES + 2) * _VECTOR + _LINE


def _weights_stride(keys: int) -> int:
    """Bytes of one query's weights: every segment may begin and end inside a tile."""
    return (-(-keys // LANES) + 2 * 4) * _VECTOR + _LINE


def _emit_scores(form: int, heads: int):
    """Scores of `heads` queries against tiles of 16 keys: (q, q_stride, k, tiles, blocks, scale, out, out_stride)."""

    def codegen(context, builder, signature, args):
        _, _, q, q_stride, k, tiles, blocks, scale, out, out_stride = args
        e = Emitter(builder)
        factor = e.splat(scale)
        queries = [e.at(q, builder.mul(q_stride, const_i64(h))) for h in range(heads)]
        outs = [e.at(out, builder.mul(out_stride, const_i64(h))) for h in range(heads)]
        sums = [[e.variable(ZERO) for _ in range(4)] for _ in range(heads)]
        element = 4 if form == _F32 else 2
        with cgutils.for_range(builder, tiles, intp=I64) as tile:
            for chains in sums:
                for chain in chains:
                    builder.store(ZERO, chain)
            tile_bytes = builder.mul(blocks, const_i64(LANES * LANES * element))
            start = e.at(k, builder.mul(tile.index, tile_bytes))
            with cgutils.for_range(builder, blocks, intp=I64) as block:
                keys = e.at(start, builder.mul(block.index, const_i64(LANES * LANES * element)))
                at = builder.mul(block.index, const_i64(_VECTOR))
                for d in range(LANES):
                    key = _load_exact(e, form, keys, d * LANES * element)
                    for h in range(heads):
                        chain = sums[h][d & 3]
                        value = e.fma(key, e.broadcast(e.at(queries[h], at), 4 * d), builder.load(chain))
                        builder.store(value, chain)
            to = builder.mul(tile.index, const_i64(_VECTOR))
            for h in range(heads):
                a, b, c, d = (builder.load(chain) for chain in sums[h])
                total = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
                e.store(builder.fmul(total, factor), outs[h], to, align=_VECTOR)
        return context.get_dummy_value()

    return codegen


def _load_exact(e: Emitter, form: int, base: ir.Value, offset: int) -> ir.Value:
    """16 stored values as f32; lines are aligned."""
    if form == _F32:
        return e.load(base, offset, V32, align=_VECTOR)
    return e.b.fpext(e.load(base, offset, V16, align=32), V32)


def _emit_weigh(form: int, heads: int, columns: int):
    """acc += w_j · v_j over rows, ascending, and the denominators += w_j.

    (v, row_bytes, rows, w, w_stride, acc, acc_stride, den): `columns` vectors of each V row; den f32 [heads].
    """

    def codegen(context, builder, signature, args):
        _, _, _, v, row_bytes, rows, w, w_stride, acc, acc_stride, den = args
        e = Emitter(builder)
        element = 4 if form == _F32 else 2
        weights = [e.at(w, builder.mul(w_stride, const_i64(h))) for h in range(heads)]
        targets = [e.at(acc, builder.mul(acc_stride, const_i64(h))) for h in range(heads)]
        sums = [
            [e.variable(e.load(targets[h], c * _VECTOR, V32, align=_VECTOR)) for c in range(columns)]
            for h in range(heads)
        ]
        masses = [e.variable(e.load(den, 4 * h, F32, align=4)) for h in range(heads)]
        with cgutils.for_range(builder, rows, intp=I64) as row:
            start = e.at(v, builder.mul(row.index, row_bytes))
            values = [_load_exact(e, form, start, c * LANES * element) for c in range(columns)]
            at = builder.mul(row.index, const_i64(4))
            for h in range(heads):
                weight = e.load(weights[h], at, F32, align=4)
                builder.store(builder.fadd(builder.load(masses[h]), weight), masses[h])
                wide = e.splat(weight)
                for c in range(columns):
                    builder.store(e.fma(values[c], wide, builder.load(sums[h][c])), sums[h][c])
        for h in range(heads):
            for c in range(columns):
                e.store(builder.load(sums[h][c]), targets[h], c * _VECTOR, align=_VECTOR)
            e.store(builder.load(masses[h]), den, 4 * h, align=4)
        return context.get_dummy_value()

    return codegen


@intrinsic(prefer_literal=True)
def _scores(typing, form, heads, q, q_stride, k, tiles, blocks, scale, out, out_stride):
    signature = types.void(form, heads, _I, _I, _I, _I, _I, types.float32, _I, _I)
    return signature, _emit_scores(form.literal_value, heads.literal_value)


@intrinsic(prefer_literal=True)
def _weigh(typing, form, heads, columns, v, row_bytes, rows, w, w_stride, acc, acc_stride, den):
    signature = types.void(form, heads, columns, _I, _I, _I, _I, _I, _I, _I, _I)
    return signature, _emit_weigh(form.literal_value, heads.literal_value, columns.literal_value)


@intrinsic
def _mask_and_top(typing, scores, tiles, base, first, upto, softcap, top):
    """Softcap (if > 0), −inf outside rows [first, upto), running maxima by lane. The tiles' first row is `base`."""

    def codegen(context, builder, signature, args):
        scores, tiles, base, first, upto, softcap, top = args
        e = Emitter(builder)
        lane = ir.Constant(VI32, list(range(LANES)))
        low, high = (e.splat(builder.trunc(x, I32)) for x in (first, upto))
        cap = e.splat(softcap)
        best = e.variable(e.load(top, 0, V32, align=_VECTOR))
        nothing = const_f32(float("-inf"))
        is_capped = builder.fcmp_ordered(">", softcap, ir.Constant(F32, 0.0))
        with cgutils.for_range(builder, tiles, intp=I64) as tile:
            at = builder.mul(tile.index, const_i64(_VECTOR))
            value = e.variable(e.load(scores, at, V32, align=_VECTOR))
            with builder.if_then(is_capped, likely=False):
                builder.store(builder.fmul(cap, e.tanh(builder.fdiv(builder.load(value), cap))), value)
            start = builder.add(base, builder.mul(tile.index, const_i64(LANES)))
            row = builder.add(e.splat(builder.trunc(start, I32)), lane)
            seen = builder.and_(builder.icmp_signed(">=", row, low), builder.icmp_signed("<", row, high))
            masked = builder.select(seen, builder.load(value), nothing)
            e.store(masked, scores, at, align=_VECTOR)
            builder.store(e.maximum(builder.load(best), masked), best)
        e.store(builder.load(best), top, 0, align=_VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I, types.float32, _I), codegen


@intrinsic
def _start_top(typing, top):
    def codegen(context, builder, signature, args):
        Emitter(builder).store(const_f32(float("-inf")), args[0], 0, align=_VECTOR)
        return context.get_dummy_value()

    return types.void(_I), codegen


@intrinsic
def _to_weights(typing, scores, tiles, top, sink, den):
    """Scores become e = exp(s − max), 0 below SKIP_BELOW; den f32 starts with the sink's e (sink 0: none).

    `sink` is the address of the head's logit, which joins the maximum.
    """

    def codegen(context, builder, signature, args):
        scores, tiles, top, sink, den = args
        e = Emitter(builder)
        largest = e.variable(e.tree(e.load(top, 0, V32, align=_VECTOR), e.maximum))
        mass = e.variable(ir.Constant(F32, 0.0))
        with builder.if_then(builder.icmp_unsigned("!=", sink, const_i64(0))):
            logit = e.load(sink, 0, F32, align=4)
            builder.store(e.maximum(builder.load(largest), logit), largest)
            shifted = e.splat(builder.fsub(logit, builder.load(largest)))
            builder.store(builder.extract_element(e.exp(shifted), ir.Constant(I32, 0)), mass)
        e.store(builder.load(mass), den, 0, align=4)
        shift = e.splat(builder.load(largest))
        with cgutils.for_range(builder, tiles, intp=I64) as tile:
            at = builder.mul(tile.index, const_i64(_VECTOR))
            value = e.exp(builder.fsub(e.load(scores, at, V32, align=_VECTOR), shift))
            small = builder.fcmp_ordered("<", value, const_f32(SKIP_BELOW))
            e.store(builder.select(small, ZERO, value), scores, at, align=_VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I, _I), codegen


@intrinsic
def _copy_row(typing, source, target, count, blocks):
    """`count` f32 to an aligned row of `blocks` vectors, the rest zeros."""

    def codegen(context, builder, signature, args):
        source, target, count, blocks = args
        e = Emitter(builder)
        full = builder.udiv(count, const_i64(LANES))
        with cgutils.for_range(builder, full, intp=I64) as block:
            at = builder.mul(block.index, const_i64(_VECTOR))
            e.store(e.load(source, at, V32, align=4), target, at, align=_VECTOR)
        with builder.if_then(builder.icmp_unsigned("<", full, blocks), likely=False):
            tail = builder.mul(full, const_i64(_VECTOR))
            e.store(ZERO, target, tail, align=_VECTOR)
            with cgutils.for_range(builder, builder.urem(count, const_i64(LANES)), intp=I64) as lane:
                at = builder.add(tail, builder.mul(lane.index, const_i64(4)))
                e.store(e.load(source, at, F32, align=4), target, at, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen


@intrinsic
def _clear(typing, target, vectors):
    def codegen(context, builder, signature, args):
        target, vectors = args
        e = Emitter(builder)
        with cgutils.for_range(builder, vectors, intp=I64) as index:
            e.store(ZERO, target, builder.mul(index.index, const_i64(_VECTOR)), align=_VECTOR)
        return context.get_dummy_value()

    return types.void(_I, _I), codegen


@intrinsic
def _divide_row(typing, source, target, count, den):
    """target = source / den + 0.0, `count` f32; a weightless row (den 0) is zeros."""

    def codegen(context, builder, signature, args):
        source, target, count, den = args
        e = Emitter(builder)
        mass = e.load(den, 0, F32, align=4)
        is_empty = builder.fcmp_ordered("==", mass, ir.Constant(F32, 0.0))
        divisor = builder.select(is_empty, ir.Constant(F32, 1.0), mass)
        wide = e.splat(divisor)
        full = builder.udiv(count, const_i64(LANES))
        with cgutils.for_range(builder, full, intp=I64) as block:
            at = builder.mul(block.index, const_i64(_VECTOR))
            quotient = builder.fdiv(e.load(source, at, V32, align=_VECTOR), wide)
            e.store(builder.fadd(quotient, ZERO), target, at, align=4)
        with cgutils.for_range(builder, builder.urem(count, const_i64(LANES)), intp=I64) as lane:
            at = builder.mul(builder.add(builder.mul(full, const_i64(LANES)), lane.index), const_i64(4))
            quotient = builder.fdiv(e.load(source, at, F32, align=4), divisor)
            e.store(builder.fadd(quotient, ir.Constant(F32, 0.0)), target, at, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen


@intrinsic
def _add_mass(typing, weights, count, den, target):
    """target[j] += w_j / den over `count` rows (rounded up to whole vectors, where weights are zero)."""

    def codegen(context, builder, signature, args):
        weights, count, den, target = args
        e = Emitter(builder)
        mass = e.load(den, 0, F32, align=4)
        is_empty = builder.fcmp_ordered("==", mass, ir.Constant(F32, 0.0))
        divisor = builder.select(is_empty, ir.Constant(F32, 1.0), mass)
        with cgutils.for_range(builder, count, intp=I64) as row:
            at = builder.mul(row.index, const_i64(4))
            share = builder.fdiv(e.load(weights, at, F32, align=4), divisor)
            e.store(builder.fadd(e.load(target, at, F32, align=4), share), target, at, align=4)
        return context.get_dummy_value()

    return types.void(_I, _I, _I, _I), codegen


@intrinsic
def _field(typing, table, index):
    """Field `index` of a table of int64."""

    def codegen(context, builder, signature, args):
        table, index = args
        e = Emitter(builder)
        return e.load(table, builder.mul(index, const_i64(8)), I64, align=8)

    return types.int64(_I, _I), codegen


@njit(**_JIT)
def _scores_of(form, q, q_stride, k, tiles, blocks, scale, out, out_stride, queries):
    """Scores of every query against `tiles` tiles, ROW_BLOCK keys at a time for all queries."""
    step = ROW_BLOCK // LANES
    tile_bytes = blocks * LANES * LANES * (4 if form == _F32 else 2)
    for tile in range(0, tiles, step):
        some = min(step, tiles - tile)
        keys, to = k + tile * tile_bytes, out + tile * _VECTOR
        h = 0
        while h < queries:
            group = min(queries - h, 4)
            qh, oh = q + h * q_stride, to + h * out_stride
            if form == _F32:
                if group == 4:
                    _scores(_F32, 4, qh, q_stride, keys, some, blocks, scale, oh, out_stride)
                elif group == 3:
                    _scores(_F32, 3, qh, q_stride, keys, some, blocks, scale, oh, out_stride)
                elif group == 2:
                    _scores(_F32, 2, qh, q_stride, keys, some, blocks, scale, oh, out_stride)
                else:
                    _scores(_F32, 1, qh, q_stride, keys, some, blocks, scale, oh, out_stride)
            elif group == 4:
                _scores(_F16, 4, qh, q_stride, keys, some, blocks, scale, oh, out_stride)
            elif group == 3:
                _scores(_F16, 3, qh, q_stride, keys, some, blocks, scale, oh, out_stride)
            elif group == 2:
                _scores(_F16, 2, qh, q_stride, keys, some, blocks, scale, oh, out_stride)
            else:
                _scores(_F16, 1, qh, q_stride, keys, some, blocks, scale, oh, out_stride)
            h += group


@njit(**_JIT)
def _weigh_f32(wide, group, v, row_bytes, rows, w, w_stride, acc, acc_stride, den):
    if wide:
        if group == 4:
            _weigh(_F32, 4, COLUMNS, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
        elif group == 3:
            _weigh(_F32, 3, COLUMNS, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
        elif group == 2:
            _weigh(_F32, 2, COLUMNS, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
        else:
            _weigh(_F32, 1, COLUMNS, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
    elif group == 4:
        _weigh(_F32, 4, 1, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
    elif group == 3:
        _weigh(_F32, 3, 1, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
    elif group == 2:
        _weigh(_F32, 2, 1, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
    else:
        _weigh(_F32, 1, 1, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)


@njit(**_JIT)
def _weigh_f16(wide, group, v, row_bytes, rows, w, w_stride, acc, acc_stride, den):
    if wide:
        if group == 4:
            _weigh(_F16, 4, COLUMNS, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
        elif group == 3:
            _weigh(_F16, 3, COLUMNS, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
        elif group == 2:
            _weigh(_F16, 2, COLUMNS, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
        else:
            _weigh(_F16, 1, COLUMNS, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
    elif group == 4:
        _weigh(_F16, 4, 1, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
    elif group == 3:
        _weigh(_F16, 3, 1, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
    elif group == 2:
        _weigh(_F16, 2, 1, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)
    else:
        _weigh(_F16, 1, 1, v, row_bytes, rows, w, w_stride, acc, acc_stride, den)


@njit(**_JIT)
def _weigh_of(form, v, blocks, rows, w, w_stride, acc, acc_stride, den, queries):
    """acc and den += the weighted rows, ROW_BLOCK rows at a time for all queries and columns."""
    element = 4 if form == _F32 else 2
    row_bytes = blocks * LANES * element
    for row in range(0, rows, ROW_BLOCK):
        some = min(ROW_BLOCK, rows - row)
        values, weights = v + row * row_bytes, w + row * 4
        h = 0
        while h < queries:
            group = min(queries - h, 4)
            column = 0
            mass = den + h * 4
            while column < blocks:
                wide = blocks - column >= COLUMNS
                vc, ac = values + column * LANES * element, acc + h * acc_stride + column * _VECTOR
                if form == _F32:
                    _weigh_f32(wide, group, vc, row_bytes, some, weights + h * w_stride, w_stride, ac, acc_stride, mass)
                else:
                    _weigh_f16(wide, group, vc, row_bytes, some, weights + h * w_stride, w_stride, ac, acc_stride, mass)
                column += COLUMNS if wide else 1
                mass = den + MAX_QUERIES * 4  # the row's weight is counted with its first columns only
            h += group


@njit(**_JIT)
def _attend_queries(table, kv_head, rows, heads, q, q_row_bytes, q_head_bytes, out, out_row_bytes, out_head_bytes,
                    seen, window, scale, softcap, sinks, mass, mass_row_bytes, scratch):  # fmt: skip
    """At most MAX_QUERIES queries: `heads` heads of `rows` consecutive rows; row i sees seen + i stored rows."""
    head_dim, blocks = _field(table, _HEAD_DIM), _field(table, _PADDED_DIM) // LANES
    wide = blocks * _VECTOR
    queries = rows * heads
    upto = seen + rows - 1
    first = max(seen - window, 0) if window > 0 else 0
    padded_q = (scratch + _LINE - 1) // _LINE * _LINE
    acc = padded_q + MAX_QUERIES * wide
    den = acc + MAX_QUERIES * wide
    tops = den + 2 * _VECTOR
    weights = tops + MAX_QUERIES * _VECTOR
    stride = ((upto - first) // LANES + 8) * _VECTOR + _LINE
    for row in range(rows):
        for h in range(heads):
            source = q + row * q_row_bytes + h * q_head_bytes
            _copy_row(source, padded_q + (row * heads + h) * wide, head_dim, blocks)
            _start_top(tops + (row * heads + h) * _VECTOR)
    _clear(acc, queries * blocks)
    tiles_done = 0
    for index in range(_field(table, _SEGMENTS)):
        segment = table + (HEADER_FIELDS + index * SEGMENT_FIELDS) * 8
        start = _field(segment, _FIRST)
        lo, hi = max(first - start, 0), upto - start
        if index + 1 < _field(table, _SEGMENTS):
            hi = min(hi, _field(segment, _ROWS))
        if lo >= hi:
            continue
        tile = lo // LANES
        tiles = (hi + LANES - 1) // LANES - tile
        form = _field(segment, _K_FORM)
        k = _field(segment, _K) + kv_head * _field(segment, _K_STRIDE)
        k += tile * blocks * LANES * LANES * (4 if form == _F32 else 2)
        to = weights + tiles_done * _VECTOR
        _scores_of(form, padded_q, wide, k, tiles, blocks, scale, to, stride, queries)
        for n in range(queries):
            row_upto = seen + n // heads - start
            row_first = max(row_upto - window, 0) if window > 0 else 0
            _mask_and_top(to + n * stride, tiles, tile * LANES, max(row_first, lo), min(row_upto, hi), softcap,
                          tops + n * _VECTOR)  # fmt: skip
        tiles_done += tiles
    for n in range(queries):
        sink = sinks + (n % heads) * 4 if sinks != 0 else 0
        _to_weights(weights + n * stride, tiles_done, tops + n * _VECTOR, sink, den + n * 4)
    tiles_done = 0
    for index in range(_field(table, _SEGMENTS)):
        segment = table + (HEADER_FIELDS + index * SEGMENT_FIELDS) * 8
        start = _field(segment, _FIRST)
        lo, hi = max(first - start, 0), upto - start
        if index + 1 < _field(table, _SEGMENTS):
            hi = min(hi, _field(segment, _ROWS))
        if lo >= hi:
            continue
        tile = lo // LANES
        form = _field(segment, _V_FORM)
        v = _field(segment, _V) + kv_head * _field(segment, _V_STRIDE)
        v += lo * blocks * LANES * (4 if form == _F32 else 2)
        to = weights + tiles_done * _VECTOR + (lo - tile * LANES) * 4
        _weigh_of(form, v, blocks, hi - lo, to, stride, acc, wide, den, queries)
        if mass != 0:
            for n in range(queries):
                target = mass + n // heads * mass_row_bytes + (start + lo) * 4
                _add_mass(to + n * stride, hi - lo, den + n * 4, target)
        tiles_done += (hi + LANES - 1) // LANES - tile
    for n in range(queries):
        target = out + n // heads * out_row_bytes + n % heads * out_head_bytes
        _divide_row(acc + n * wide, target, head_dim, den + n * 4)


@njit(**_JIT)
def attend_rows(table, kv_head, head_lo, head_hi, q, q_row_bytes, q_head_bytes, out, out_row_bytes, out_head_bytes,
                rows, seen, window, scale, softcap, sinks, mass, mass_row_bytes, scratch):  # fmt: skip
    """Query heads [head_lo, head_hi) of one KV head for `rows` consecutive rows of one sequence.

    All addresses are in bytes (int64): `q` and `out` of row 0's head `head_lo`, f32 [head_dim] a head, with strides
    between rows and heads. Row i sees the first seen + i stored rows, at most the last `window` of them (0: all);
    the rows themselves are stored already. `softcap` 0 is off; `sinks` is the address of head_lo's logit, or 0.
    `mass`: 0, or the address of f32 [rows, ≥ seen + rows − 1], to which the probabilities of these heads are added.
    `scratch`: `scratch_bytes(seen + rows − 1, padded_dim)` bytes that no other thread uses.
    """
    head = head_lo
    while head < head_hi:
        heads = min(head_hi - head, MAX_QUERIES)
        step = MAX_QUERIES // heads
        shift = head - head_lo
        sink = sinks + shift * 4 if sinks != 0 else 0
        for row in range(0, rows, step):
            _attend_queries(table, kv_head, min(step, rows - row), heads,
                            q + row * q_row_bytes + shift * q_head_bytes, q_row_bytes, q_head_bytes,
                            out + row * out_row_bytes + shift * out_head_bytes, out_row_bytes, out_head_bytes,
                            seen + row, window, scale, softcap, sink,
                            mass + row * mass_row_bytes if mass != 0 else 0, mass_row_bytes, scratch)  # fmt: skip
        head += heads
