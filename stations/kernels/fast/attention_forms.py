"""How each storage form of K and V is read in the inner loops of attention: load, widen, decode, multiply.

One class a form. `emit_scores` writes the loop over tiles of 16 keys, `emit_weigh` the loop over V rows, both for 1 to
4 queries at once, so that a tile or row is loaded and widened once for all of them. Arguments come by name in a
namespace; `attention_ir.py` says what they are. Layouts: `stations/kv/table.py`.
"""

from __future__ import annotations

from types import SimpleNamespace

from llvmlite import ir
from numba.core import cgutils

from stations.kv.table import Form, Segment

from .vector import (
    F32,
    I32,
    I64,
    LANES,
    POINTER,
    V16,
    V32,
    ZERO,
    Emitter,
    const_i64,
)

CHAINS = 4  # fma chains of a score, dim mod 4
# How far before their use keys are asked for, a line now and then: processors foresee rows within a page only, and are
# shown the next one.
EXACT_AHEAD_BYTES = 8192
VECTOR = LANES * 4

Vectors = list[ir.Value]
Chains = list[Vectors]


def table_field(e: Emitter, segment: ir.Value, field: Segment) -> ir.Value:
    return e.load(segment, 8 * int(field), I64, align=8)


def strided(e: Emitter, base: ir.Value, stride: ir.Value, count: int) -> list[ir.Value]:
    """Addresses base, base + stride, …"""
    return [e.at(base, e.b.mul(stride, const_i64(n))) for n in range(count)]


def head_start(e: Emitter, a: SimpleNamespace, what: Segment, stride: Segment) -> ir.Value:
    """Address of one KV head's part of a stream."""
    return e.at(table_field(e, a.segment, what), e.b.mul(a.kv_head, table_field(e, a.segment, stride)))


def ask_for(e: Emitter, base: ir.Value, ahead: int, size: int) -> None:
    """Let the `size` bytes that lie `ahead` behind `base` come into the processor's cache."""
    for line in range(ahead, ahead + size, VECTOR):
        at = e.b.inttoptr(e.at(base, line), POINTER)
        e.call("llvm.prefetch.p0", ir.VoidType(), at, ir.Constant(I32, 0), ir.Constant(I32, 2), ir.Constant(I32, 1))


def combined(e: Emitter, chains: list[ir.Value]) -> ir.Value:
    """(0 + 1) + (2 + 3)."""
    c = [e.b.load(chain) for chain in chains]
    return e.b.fadd(e.b.fadd(c[0], c[1]), e.b.fadd(c[2], c[3]))


def new_chains(e: Emitter, group: int) -> Chains:
    return [[e.variable(ZERO) for _ in range(CHAINS)] for _ in range(group)]


def reset(e: Emitter, sums: Chains) -> None:
    for chains in sums:
        for chain in chains:
            e.b.store(ZERO, chain)


class ExactForm:
    """Rows as they came: f32, or f16 widened on load."""

    def __init__(self, form: Form) -> None:
        self.bytes = 4 if form is Form.F32 else 2

    def _load(self, e: Emitter, base: ir.Value, vector: int) -> ir.Value:
        at = vector * LANES * self.bytes
        if self.bytes == 4:
            return e.load(base, at, V32, align=VECTOR)
        return e.half_to_float(e.load(base, at, V16, align=32))

    def row_bytes(self, e: Emitter, a: SimpleNamespace) -> ir.Value:
        return e.b.mul(a.blocks, const_i64(LANES * self.bytes))

    def row_values(
        self, e: Emitter, a: SimpleNamespace, row: ir.Value, start: ir.Value, columns: int
    ) -> list[ir.Value]:
        begin = e.at(start, e.b.mul(a.column, const_i64(LANES * self.bytes)))
        return [self._load(e, begin, c) for c in range(columns)]

    def emit_scores(self, e: Emitter, group: int, a: SimpleNamespace) -> None:
        """out[query, tile] = scale · Σ_d q_d k_d."""
        b = e.b
        factor = e.splat(a.scale)
        queries, outs = strided(e, a.q, a.q_stride, group), strided(e, a.out, a.out_stride, group)
        sums = new_chains(e, group)
        block_bytes = const_i64(LANES * LANES * self.bytes)
        first = head_start(e, a, Segment.K, Segment.K_STRIDE)
        first = e.at(first, b.mul(a.tile, b.mul(a.blocks, block_bytes)))
        with cgutils.for_range(b, a.tiles, intp=I64) as tile:
            reset(e, sums)
            start = e.at(first, b.mul(tile.index, b.mul(a.blocks, block_bytes)))
            with cgutils.for_range(b, a.blocks, intp=I64) as block:
                keys = e.at(start, b.mul(block.index, block_bytes))
                ask_for(e, keys, EXACT_AHEAD_BYTES, VECTOR)
                loaded = [self._load(e, keys, d) for d in range(LANES)]
                self.multiply_dims(e, sums, queries, b.mul(block.index, const_i64(VECTOR)), loaded)
            for out, chains in zip(outs, sums, strict=True):
                score = b.fmul(combined(e, chains), factor)
                e.store(score, out, b.mul(tile.index, const_i64(VECTOR)), align=VECTOR)

    def emit_weigh(self, e: Emitter, group: int, columns: int, a: SimpleNamespace) -> None:
        """acc[query] += w_j · v_j and den[query] += w_j over `a.rows` rows from `a.row` on, in order."""
        b = e.b
        weights = strided(e, a.w, a.w_stride, group)
        targets = strided(e, a.acc, a.acc_stride, group)
        sums = [[e.variable(e.load(t, c * VECTOR, V32, align=VECTOR)) for c in range(columns)] for t in targets]
        totals = [e.variable(e.load(a.den, 4 * n, F32, align=4)) for n in range(group)]
        row_bytes = self.row_bytes(e, a)
        first = e.at(head_start(e, a, Segment.V, Segment.V_STRIDE), b.mul(a.row, row_bytes))
        with cgutils.for_range(b, a.rows, intp=I64) as loop:
            start = e.at(first, b.mul(loop.index, row_bytes))
            values = self.row_values(e, a, b.add(a.row, loop.index), start, columns)
            at = b.mul(loop.index, const_i64(4))
            for n in range(group):
                mass = e.load(weights[n], at, F32, align=4)
                b.store(b.fadd(b.load(totals[n]), mass), totals[n])
                weight = e.splat(mass)
                for value, chain in zip(values, sums[n], strict=True):
                    b.store(e.fma(value, weight, b.load(chain)), chain)
        for target, chains in zip(targets, sums, strict=True):
            for c, chain in enumerate(chains):
                e.store(b.load(chain), target, c * VECTOR, align=VECTOR)
        for n, total in enumerate(totals):
            e.store(b.load(total), a.den, 4 * n, align=4)

    def multiply_dims(
        self, e: Emitter, sums: Chains, queries: list[ir.Value], at: ir.Value, keys: list[ir.Value]
    ) -> None:
        """chains += key of dim d · q_d for 16 dims whose queries lie at `at`."""
        b = e.b
        for d, key in enumerate(keys):
            for query, chains in zip(queries, sums, strict=True):
                chain = chains[d % CHAINS]
                b.store(e.fma(key, e.broadcast(e.at(query, at), 4 * d), b.load(chain)), chain)


FORMS: dict[int, ExactForm] = {
    int(Form.F32): ExactForm(Form.F32),
    int(Form.F16): ExactForm(Form.F16),
}
