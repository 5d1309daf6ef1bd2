"""A layer's O(1) overlay: exact attention while queries are collected, then landmarks in place of the rows.

Collecting: rows are stored and attended exactly; one rotated query row in `stride` is kept. Sealed: every KV group is
an `OverlayGroup` and the rows are gone. Failed: the seal was impossible, the layer is empty and stays so until it is
cleared. The change happens at one position, once, after a whole pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aeonflow.kv_options import MIN_LANDMARKS

from .errors import KvFormError
from .nystrom import OverlayShape
from .overlay_group import PLAIN, GroupRows, OverlayGroup, OverlayKernels, overlay_wins
from .streams import F32, I64
from .table import GROUP_FIELDS, Header


class SealReport(NamedTuple):
    """What the guard found: query heads of the layer, and those that keep their far field."""

    heads: int
    heads_with_far_field: int


class Overlay:
    """`seal_at`: the position asked for; the layer seals at it or at the shape's floor, whichever is later. None:
    whenever it is told to, from the floor on. `kernels` compute the seal."""

    def __init__(self, shape: OverlayShape, seal_at: int | None, stride: int, guarded: bool) -> None:
        self.shape = shape
        self.stride = max(stride, 1)
        self.boundary = None if seal_at is None else max(seal_at, shape.seal_floor)
        self.guarded = guarded
        self.kernels: OverlayKernels = PLAIN
        self.heads = 0  # query heads of the trace that compiled code writes, 0: it writes none
        self.groups: list[OverlayGroup] = []
        self.records: I64 = np.zeros((0, GROUP_FIELDS), np.int64)  # of the groups
        self.error: str | None = None
        self.report: SealReport | None = None
        self._pass: F32 = np.zeros((0, 0), np.float32)
        self._queries: list[F32] = []  # kept rows, [heads · dim] each
        self._query_rows = 0

    @property
    def is_collecting(self) -> bool:
        return not self.groups and self.error is None

    @property
    def is_sealed(self) -> bool:
        return bool(self.groups)

    def crosses(self, rows: int, count: int) -> bool:
        """Whether `count` rows behind `rows` stored ones would go past the boundary. Ending on it does not."""
        if not self.is_collecting or self.boundary is None:
            return False
        return rows >= self.boundary or rows + count > self.boundary

    def push(self, q: F32) -> None:
        """Rotated queries of consecutive rows, [rows, heads · dim]."""
        for row in q:
            if self._query_rows % self.stride == 0:
                self._queries.append(row.copy())
            self._query_rows += 1

    def begin_trace(self, table: I64, rows: int, head_dim: int) -> None:
        """Room where compiled code puts the rotated queries of a pass of `rows` rows; a layer's `table` says where."""
        if not self.heads:
            return
        if len(self._pass) < rows:
            self._pass = np.empty((rows, self.heads * head_dim), np.float32)
        table[Header.TRACE], table[Header.TRACE_ROW] = self._pass.ctypes.data, self._pass.strides[0]

    def end_trace(self, rows: int) -> None:
        """The pass was of `rows` rows: its queries are kept."""
        if self.heads:
            self.push(self._pass[:rows])

    def take_trace(self, q: F32, rows: int) -> None:
        """The kept queries of `rows` rows at once, [rows / stride, heads · dim]."""
        self._queries = list(q)
        self._query_rows = rows

    def truncate(self, rows: int) -> None:
        """Forget queries of rows from `rows` on."""
        self._query_rows = min(self._query_rows, rows)
        del self._queries[-(-self._query_rows // self.stride) :]

    @property
    def memory_bytes(self) -> int:
        """The query trace while collecting, the groups afterwards."""
        return sum(q.nbytes for q in self._queries) + sum(group.memory_bytes for group in self.groups)

    def check(self, rows: int, num_heads: int, num_kv_heads: int, head_dim: int, is_dense: bool, mode: str) -> None:
        """Raises KvFormError with the reason why rows cannot be sealed."""
        shape = self.shape
        if mode != "f32":
            raise KvFormError(f"an O(1) seal needs F32 rows; the cache is {mode}")
        if num_heads < 1 or num_heads % num_kv_heads:
            raise KvFormError(f"an O(1) seal with {num_heads} query heads on {num_kv_heads} KV heads")
        if not is_dense:
            raise KvFormError("an O(1) seal needs every KV head's rows; some heads are dead")
        if shape.landmarks < MIN_LANDMARKS or shape.window < 1 or shape.sink < 0:
            raise KvFormError(
                f"an O(1) overlay of {shape.landmarks} landmarks, window {shape.window} and {shape.sink} sinks:"
                f" at least {MIN_LANDMARKS}, 1 and 0 are needed"
            )
        expected = -(-rows // self.stride)
        sizes = {q.size for q in self._queries}
        if self._query_rows != rows or len(self._queries) != expected or sizes != {num_heads * head_dim}:
            raise KvFormError(
                f"the query trace has {self._query_rows} rows of {sorted(sizes)} values for {rows} rows of"
                f" {num_heads * head_dim}"
            )

    def seal(self, k: list[F32], v: list[F32], num_heads: int) -> None:
        """k, v: f32 [rows, head_dim] a KV head. `check` has passed."""
        rows, dim = k[0].shape
        per_kv = num_heads // len(k)
        trace = np.repeat(np.stack(self._queries), self.stride, axis=0)[:rows].reshape(rows, num_heads, dim)
        scale = dim**-0.5
        self.records = np.zeros((len(k), GROUP_FIELDS), np.int64)
        for g, (keys, values) in enumerate(zip(k, v, strict=True)):
            queries = np.ascontiguousarray(trace[:, g * per_kv : (g + 1) * per_kv].swapaxes(0, 1))
            prompt = GroupRows(queries, keys, values)
            wins = overlay_wins(self.shape, prompt, scale, self.kernels) if self.guarded else np.ones(per_kv, bool)
            self.groups.append(OverlayGroup(self.shape, prompt, scale, wins, self.kernels, self.records[g]))
        self._queries.clear()
        self.report = SealReport(num_heads, sum(int(group.uses_far.sum()) for group in self.groups))

    def step(self, q: F32, k: F32, v: F32) -> F32:
        """One row: q [heads, dim], k and v [kv_heads, dim] → [heads, dim]."""
        per_kv = len(q) // len(self.groups)
        parts = [g.step(q[i * per_kv : (i + 1) * per_kv], k[i], v[i]) for i, g in enumerate(self.groups)]
        return np.concatenate(parts)

    def mark(self) -> None:
        """Rows of a sealed layer that come from now on can be taken back, the first UNDO_ROWS of them."""
        for group in self.groups:
            group.mark()

    def can_take_back(self, count: int) -> bool:
        return all(group.can_take_back(count) for group in self.groups)

    def take_back(self, count: int) -> None:
        for group in self.groups:
            group.take_back(count)

    def fail(self, reason: str) -> None:
        """Only clearing the layer lifts it."""
        self.error = reason
        self.groups = []
        self._queries.clear()

    def snapshot(self) -> list[OverlayGroup]:
        """The sealed groups, bit for bit."""
        return [group.copy() for group in self.groups]

    def restore(self, snapshot: list[OverlayGroup]) -> None:
        self.groups = [group.copy(record) for group, record in zip(snapshot, self.records, strict=True)]
