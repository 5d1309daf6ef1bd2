"""The fast kernel set: packed weights as imported, compiled code, one call a role and batch.

Arrays that are returned are fresh and belong to the caller; input arrays may be unaligned views and are only read
during the call. One call at a time: a station computes inline or in its one compute thread, never both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from aeonflow.errors import BadTensorError

from ...errors import KernelError
from ...kv.layer_cache import LayerKvCache
from ...layout import GROUP_ROWS, PackedMatrix, slice_rows
from ...models.roles import RoleSpan
from ...models.store import cache_folder
from ..base import F32, U32, RowShape, Span, add_rows, vocab_range
from ..rotary import RotaryTable
from ..weights import GivenRoles, Weights
from . import fields as f
from .cache import CompileCache
from .helper_choice import HelperChoice
from .helpers import Helpers
from .loader import LoadedUnits
from .model_records import I64, ModelRecords
from .numerics import numerics_id
from .overlay import CompiledOverlay
from .prepared import FastRow, RowPreparer
from .resident import resident
from .target import known_target
from .units import ATTEND, LAYERS, lookup_unit, units_of
from .workspace import Workspace

EXACT_NAME, INT8_NAME = "fast", "fast-int8"
MAX_THREADS = f.MAX_HELPERS + 1
MAX_ROWS = 512  # rows of one compiled call: bounds the work areas, larger batches are cut; 1.5 MB a 1,000 ffn


class FastKernels:
    """Kernels of the given roles, without an identity: `FastBackend` adds the numerics id.

    `is_int8`: the set `fast-int8`, whose products take activations in 8 bits.
    """

    def __init__(
        self, weights: Weights, roles: Iterable[RoleSpan], threads: int, cache: CompileCache,
        units: LoadedUnits | None = None, *, is_int8: bool = False,
    ) -> None:  # fmt: skip
        self.name = INT8_NAME if is_int8 else EXACT_NAME
        if not 1 <= threads <= MAX_THREADS:
            raise KernelError(f"{threads} threads: the fast kernels take 1 to {MAX_THREADS}")
        self.card = weights.card
        self._roles = GivenRoles(roles)
        self.records = ModelRecords(weights, self._roles, is_int8=is_int8)
        lookups = [] if self.records.embedding is None else [self.records.embedding.kind]
        names = units_of(self.records.kinds, lookups, is_int8=is_int8)
        if units is None:
            cache.ensure(names)
            units = LoadedUnits(cache, names)
        self.units = units
        self.records.link(self.units)
        self._execute = self.units.function(LAYERS)
        self._lookup = self.units.function(lookup_unit(lookups[0])) if lookups else None
        self.workspace = Workspace(self.card, self.units.address(ATTEND), threads - 1, is_int8=is_int8)
        self._helpers = Helpers(threads - 1, self.workspace, self._execute)
        self._num_helpers = threads - 1
        self.helper_choice = HelperChoice()
        self._rotary = RotaryTable(self.card.rope)
        self._call = np.zeros(f.CALL_FIELDS, np.int64)
        self._call_address = self._call.ctypes.data
        self._heads: dict[tuple[int, int], tuple[PackedMatrix, I64]] = {}
        self._pinned: list[object] = []
        self._preparer = RowPreparer(self.units, self.records, self.workspace, self._rotary)
        self._overlay = CompiledOverlay(self.units)

    def embed(self, ids: U32, part: int, parts: int) -> F32:
        """ids [S] → [S, hidden]: rows of shard `part`, +0.0 where the id is another shard's."""
        self._roles.require("embed")
        table = self.records.embedding
        assert table is not None
        assert self._lookup is not None
        lo, hi = vocab_range(self.card.vocab_size, part, parts)
        blocks = table.num_blocks
        out = np.zeros((len(ids), blocks * 32), np.float32)
        weights, target, row_bytes = table.data.ctypes.data, out.ctypes.data, blocks * 128
        for row, token in enumerate(ids.tolist()):
            if lo <= token < hi:
                self._lookup(weights, blocks, token, target + row * row_bytes)
        return _trimmed(out, self.card.hidden_size)

    def attn(self, layer: int, x: F32, spans: Sequence[Span]) -> tuple[F32, F32]:
        """x [S, H] → h = x + attn(norm₁ x), n = norm₂ h, both [S, H]. Appends to the spans' caches."""
        self._roles.require("attn", layer)
        if len(x) > MAX_ROWS:
            done = [self.attn(layer, x[a:b], part[0]) for a, b, part in _batches(len(x), [spans])]
            return np.concatenate([h for h, _ in done]), np.concatenate([n for _, n in done])
        return self._attn_rows(layer, x, spans)

    def attn_delta(self, layer: int, x: F32, spans: Sequence[Span]) -> F32:
        """x [S, H] → a = attn(norm₁ x) [S, H], without the residual. Appends to the spans' caches."""
        self._roles.require("attn", layer)
        if len(x) > MAX_ROWS:
            return np.concatenate([self.attn_delta(layer, x[a:b], part[0]) for a, b, part in _batches(len(x), [spans])])
        return self._delta_rows(layer, x, spans)

    def add_norm(self, layer: int, x: F32, a: F32) -> tuple[F32, F32]:
        """x, a [S, H] → h = x + a, n = norm₂ h: `attn` is this on `attn_delta`, bit for bit."""
        h = add_rows(x, a)
        return h, self.norm2(layer, h)

    def norm2(self, layer: int, x: F32) -> F32:
        """x [S, H] → norm₂ x [S, H]."""
        self._roles.require_one_of(("attn", "gate_up"), layer)
        if len(x) > MAX_ROWS:
            return _in_batches(lambda a, b: self.norm2(layer, x[a:b]), len(x))
        source = self._rows(x, self.card.hidden_size)
        n = self._result(len(x), self.card.hidden_size)
        self._run(f.OP_NORM, source, n, layers=[layer])
        return _trimmed(n, self.card.hidden_size)

    def _delta_rows(self, layer: int, x: F32, spans: Sequence[Span]) -> F32:
        source = self._rows(x, self.card.hidden_size)
        a = self._result(len(x), self.card.hidden_size)
        self._with_caches(f.OP_ATTN, [layer], [spans], source, 0, a, None)
        return _trimmed(a, self.card.hidden_size)

    def _attn_rows(self, layer: int, x: F32, spans: Sequence[Span]) -> tuple[F32, F32]:
        source = self._rows(x, self.card.hidden_size)
        h, n = self._result(len(x), self.card.hidden_size), self._result(len(x), self.card.hidden_size)
        self._with_caches(f.OP_ATTN, [layer], [spans], source, 0, h, n)
        return _trimmed(h, self.card.hidden_size), _trimmed(n, self.card.hidden_size)

    def gate_up(self, layer: int, n: F32) -> F32:
        """n [S, H] → u = silu(n W_gate) ⊙ (n W_up) [S, F]."""
        self._roles.require("gate_up", layer)
        if len(n) > MAX_ROWS:
            return _in_batches(lambda a, b: self.gate_up(layer, n[a:b]), len(n))
        source = self._rows(n, self.card.hidden_size)
        u = self._result(len(n), self.card.ffn_size)
        self._run(f.OP_GATE_UP, source, u, layers=[layer])
        return _trimmed(u, self.card.ffn_size)

    def down(self, layer: int, h: F32, u: F32) -> F32:
        """h [S, H], u [S, F] → h + u W_down [S, H], the product summed in 8 fixed segments by a fixed binary tree."""
        self._roles.require("down", layer)
        if len(h) > MAX_ROWS:
            return _in_batches(lambda a, b: self.down(layer, h[a:b], u[a:b]), len(h))
        base, source = self._rows(h, self.card.hidden_size), self._rows(u, self.card.ffn_size)
        if len(base) != len(source):
            raise BadTensorError(f"down of layer {layer}: {len(base)} rows of h, {len(source)} of u")
        out = self._result(len(h), self.card.hidden_size)
        self._run(f.OP_DOWN, source, out, base, layers=[layer])
        return _trimmed(out, self.card.hidden_size)

    def down_delta(self, layer: int, u: F32) -> F32:
        """u [S, F] → f = u W_down [S, H]: `down` is h + this, bit for bit."""
        self._roles.require("down", layer)
        if len(u) > MAX_ROWS:
            return _in_batches(lambda a, b: self.down_delta(layer, u[a:b]), len(u))
        source = self._rows(u, self.card.ffn_size)
        out = self._result(len(u), self.card.hidden_size)
        self._run(f.OP_DOWN, source, out, layers=[layer])
        return _trimmed(out, self.card.hidden_size)

    def ffn(self, layer: int, n: F32, part: int, parts: int) -> F32:
        """n [S, H] → the share of slice `part` of `parts` in u W_down [S, H]; weights are read where they are."""
        self._roles.require_slice(layer, part, parts)
        if len(n) > MAX_ROWS:
            return _in_batches(lambda a, b: self.ffn(layer, n[a:b], part, parts), len(n))
        record = self.records.slices[layer, part, parts]
        source = self._rows(n, self.card.hidden_size)
        out = self._result(len(n), self.card.hidden_size)
        self._call[f.CALL_PARTS], self._call[f.CALL_WIDTH] = record.gate_up.ctypes.data, record.width
        self._call[f.CALL_FIRST_SEGMENT], self._call[f.CALL_END_SEGMENT] = record.first_segment, record.end_segment
        self._run(f.OP_FFN, source, out, layers=[layer])
        return _trimmed(out, self.card.hidden_size)

    def block(self, lo: int, hi: int, x: F32, spans: Sequence[Sequence[Span]]) -> F32:
        """Layers lo..hi (both included) in one compiled call; spans[l - lo] are the spans of layer l."""
        layers = list(range(lo, hi + 1))
        for layer in layers:
            for role in ("attn", "gate_up", "down"):
                self._roles.require(role, layer)
        if len(spans) != len(layers):
            raise BadTensorError(f"layers {lo}-{hi}: spans of {len(spans)} layers")
        if len(x) > MAX_ROWS:
            done = [self.block(lo, hi, x[a:b], part) for a, b, part in _batches(len(x), spans)]
            return np.concatenate(done)
        source = self._rows(x, self.card.hidden_size)
        out = self._result(len(x), self.card.hidden_size)
        self._with_caches(f.OP_BLOCK, layers, spans, source, self._num_helpers, out, None)
        return _trimmed(out, self.card.hidden_size)

    def head(self, x: F32, part: int, parts: int) -> F32:
        """x [S, H] → final norm and logits [S, V_part] of the shard's vocabulary range."""
        self._roles.require("head")
        if len(x) > MAX_ROWS:
            return _in_batches(lambda a, b: self.head(x[a:b], part, parts), len(x))
        matrix, record = self._head_part(part, parts)
        source = self._rows(x, self.card.hidden_size)
        logits = self._result(len(x), matrix.rows)
        norm = self.records.final_norm
        assert norm is not None
        if matrix.rows:
            self._call[f.CALL_PARTS], self._call[f.CALL_NORM] = record.ctypes.data, norm.ctypes.data
            self._run(f.OP_HEAD, source, logits, helpers=self._num_helpers)
        return _trimmed(logits, matrix.rows)

    def prepare_row(
        self, role: str, layer: int, cache: LayerKvCache | None, heads: Sequence[bytes], shape: RowShape
    ) -> FastRow | None:
        """`PreparesRows` (base.py): layer roles, and embed and head where they are whole."""
        if self._num_helpers:
            return None
        if role == "embed":
            return self._preparer.embed(heads, shape)
        if role == "head":
            matrix, parts = self._head_part(0, 1)
            return self._preparer.head(matrix.rows, parts, heads, shape)
        return self._preparer.layer(role, layer, cache, heads, shape)

    def close(self) -> None:
        """End the helper threads; the backend is not used afterwards."""
        self._helpers.close()

    def _head_part(self, part: int, parts: int) -> tuple[PackedMatrix, I64]:
        if (part, parts) not in self._heads:
            head = self.records.head
            assert head is not None
            matrix = slice_rows(head, *vocab_range(self.card.vocab_size, part, parts))
            self._heads[part, parts] = matrix, self.records.part_records([matrix], self.units)
        return self._heads[part, parts]

    def _rows(self, x: F32, width: int) -> F32:
        rows = np.ascontiguousarray(x, np.float32)
        if rows.ndim != 2 or rows.shape[1] != width:
            raise BadTensorError(f"rows of {width} values are expected, found shape {list(np.shape(x))}")
        return rows

    @staticmethod
    def _result(rows: int, width: int) -> F32:
        return np.empty((rows, -(-width // GROUP_ROWS) * GROUP_ROWS), np.float32)

    def _with_caches(
        self, op: int, layers: list[int], spans: Sequence[Sequence[Span]], x: F32, helpers: int, out: F32,
        out2: F32 | None,
    ) -> None:  # fmt: skip
        """Reserve rows in the spans' caches, run, count the rows."""
        rows = sum(span.rows for span in spans[0])
        if rows != len(x) or any(len(layer) != len(spans[0]) for layer in spans):
            raise BadTensorError(f"{len(x)} rows, but the spans of a layer hold {rows}")
        positions = keys = 0
        records: list[int] = []
        for layer_spans in spans:
            for cache, first, count in layer_spans:
                if cache.o1_collecting:
                    cache.o1_compute_with(self.card.num_heads, self._overlay)
                records += (cache.reserve(count), first, count)
                keys = max(keys, cache.seq_len + count)
                positions = max(positions, first + count)
        table = np.array(records, np.int64)
        stride = len(spans[0]) * f.SPAN_FIELDS * 8
        lists = table.ctypes.data + np.arange(len(layers), dtype=np.int64) * stride
        angles = self._rotary.upto(positions)
        self.workspace.work[f.WORK_ROPE_TABLE] = angles.ctypes.data
        self._call[f.CALL_SPANS], self._call[f.CALL_NUM_SPANS] = lists.ctypes.data, len(spans[0])
        self._run(op, x, out, layers=layers, out2=out2, helpers=helpers, keys=keys)
        for layer_spans in spans:
            for cache, _, count in layer_spans:
                cache.commit(count)
        if helpers and not self._helpers.is_settled:  # a late helper may still read what this call read
            self._pinned.append((table, lists, angles, [span.cache.pin() for layer in spans for span in layer]))

    def _run(
        self, op: int, x: F32, out: F32, x2: F32 | None = None, *, layers: Sequence[int] = (),
        out2: F32 | None = None, helpers: int = 0, keys: int = 0,
    ) -> None:  # fmt: skip
        if not len(x):
            return
        if not self.workspace.fits(len(x), keys):
            self._helpers.settle()
            self.workspace.grow(len(x), keys)
        call = self._call
        layer_size = f.LAYER_FIELDS * 8
        addresses = self.records.layers.ctypes.data + np.array(layers, np.int64) * layer_size
        call[f.CALL_OP], call[f.CALL_ROWS], call[f.CALL_X] = op, len(x), x.ctypes.data
        call[f.CALL_X2] = 0 if x2 is None else x2.ctypes.data
        call[f.CALL_OUT], call[f.CALL_OUT_STRIDE] = out.ctypes.data, out.shape[1] * 4
        call[f.CALL_OUT2] = 0 if out2 is None else out2.ctypes.data
        call[f.CALL_LAYERS], call[f.CALL_NUM_LAYERS] = addresses.ctypes.data, len(layers)
        if self._pinned and self._helpers.is_settled:
            self._pinned.clear()
        is_helped = helpers > 0 and self.helper_choice.wants_helpers(op, len(x))
        self.workspace.pool[f.POOL_HELPERS] = helpers if is_helped else 0
        if is_helped:
            self._helpers.start()
        started = time.perf_counter()
        status = self._execute(self.workspace.record, self._call_address)
        if helpers:
            self.helper_choice.took(op, len(x), time.perf_counter() - started, helped=is_helped)
        if status:
            raise KernelError(f"compiled code failed with status {status} in operation {op}")


class FastBackend(FastKernels):
    """The fast kernels of a model's roles. Compiles what the cache lacks first (seconds), else ready in milliseconds.

    `threads`: the calling thread and helpers, which join `block` and `head` calls for as long as that pays.
    `environment` says where the cache lies and which CPU to compile for. Raises KernelError where neither compiled
    code nor numba is there.
    """

    def __init__(
        self,
        weights: Weights,
        roles: Iterable[RoleSpan],
        threads: int = 1,
        environment: Mapping[str, str] | None = None,
        *,
        is_int8: bool = False,
    ) -> None:
        settings = os.environ if environment is None else environment
        folder = cache_folder(settings)
        cache = CompileCache(folder, known_target(settings, folder), settings)
        spans = list(roles)
        super().__init__(resident(weights, spans), spans, threads, cache, is_int8=is_int8)
        self.numerics_id = numerics_id(self.units, cache, is_int8=is_int8)


def _trimmed(rows: F32, width: int) -> F32:
    return rows if rows.shape[1] == width else np.ascontiguousarray(rows[:, :width])


def _in_batches(compute: Callable[[int, int], F32], rows: int) -> F32:
    return np.concatenate([compute(a, min(a + MAX_ROWS, rows)) for a in range(0, rows, MAX_ROWS)])


def _batches(rows: int, spans: Sequence[Sequence[Span]]) -> list[tuple[int, int, list[list[Span]]]]:
    """Cuts of MAX_ROWS rows with the parts of the spans that lie in them."""
    return [
        (lo, min(lo + MAX_ROWS, rows), [_cut(layer, lo, min(lo + MAX_ROWS, rows)) for layer in spans])
        for lo in range(0, rows, MAX_ROWS)
    ]


def _cut(spans: Sequence[Span], lo: int, hi: int) -> list[Span]:
    parts = []
    start = 0
    for span in spans:
        a, b = max(lo, start), min(hi, start + span.rows)
        if a < b:
            parts.append(Span(span.cache, span.first + a - start, b - a))
        start += span.rows
    return parts
