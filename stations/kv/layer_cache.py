"""One layer's KV cache: rows of K and V head by head, two counters, importance, and the attend family.

Rows are appended, attended over and truncated. *seq_len* counts the rows stored, *pos_len* is the position the next
row gets, *base* the position of stored row 0: three numbers, since rows can leave the front. Every attend indexes
stored rows. Keys come rotated and stay so. The attend methods are the plain version (`attend.py`); compiled kernels
read the same storage through `reserve`, `commit` and `table`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .absmax import AbsMax, abs_max
from .attend import I64, Softmax, attend
from .errors import KvShapeError, RollbackError
from .exact_rows import ExactRows, RowType
from .importance import Importance
from .memory import padded
from .table import HEADER_FIELDS, TABLE_FIELDS, Header
from .wire import LayerState, Record, RecordKind, export_record, parse_record

F32 = npt.NDArray[np.float32]

_generations = itertools.count(1)
_STORAGE: dict[str, RowType] = {"f32": np.float32, "f16": np.float16}


class LayerKvCache:
    """The rows of one layer of one sequence. `mode` is how rows are stored: "f32" or "f16".

    Attributes of the layer, which `clear` and imports keep: `sinks` (f32 [heads], one learned logit per query head,
    or None), `wire_kind`, `wire_layer`, `wire_identity`. Of the sequence: `linear_state` and `linear_scratch` (f32).
    """

    def __init__(self, num_kv_heads: int, head_dim: int, mode: str = "f32", capacity: int = 0) -> None:
        if mode not in _STORAGE:
            raise KvShapeError(f"KV mode {mode!r} is unknown; known are {', '.join(_STORAGE)}")
        if num_kv_heads < 1 or head_dim < 1:
            raise KvShapeError(f"{num_kv_heads} KV heads of {head_dim} dims: both must be at least 1")
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.mode = mode
        self.sinks: F32 | None = None
        self.wire_kind = RecordKind.FULL
        self.wire_layer = 0
        self.wire_identity = 0
        self.linear_state: F32 = np.zeros(0, np.float32)
        self.linear_scratch: F32 = np.zeros(0, np.float32)
        self.table: I64 = np.zeros(TABLE_FIELDS, np.int64)
        self._linear_wire_allowed = True
        self._capacity = capacity
        self._generation = next(_generations)
        self._abs_max = AbsMax()
        self._start(range(num_kv_heads))

    def _start(self, alive: Sequence[int]) -> None:
        """Empty storage for the heads named by `alive`."""
        self._slots = {head: slot for slot, head in enumerate(alive)}
        self._alive_known = False
        self._store = ExactRows(len(self._slots), self.head_dim, _STORAGE[self.mode], self._capacity)
        self._importance = Importance()
        self._base = 0
        self._next = 0
        self._rollback_floor = 0
        self._describe()

    # Counters

    @property
    def seq_len(self) -> int:
        """Rows stored."""
        return self._store.rows

    @property
    def base(self) -> int:
        """Position of stored row 0."""
        return self._base

    @property
    def pos_len(self) -> int:
        """Position the next row gets: the absolute depth."""
        return self._next

    @property
    def generation(self) -> int:
        """A process-wide unique number that changes with every change a row count cannot reveal."""
        return self._generation

    @property
    def importance(self) -> F32:
        """f32 [seq_len]: the undecayed sum of the probabilities with which all heads read each row. A copy."""
        return self._importance.of(self.seq_len)

    def head_len(self, kv_head: int) -> int:
        """Rows stored for one head: 0 for a dead one."""
        return self.seq_len if kv_head in self._slots else 0

    def head_keys(self, kv_head: int) -> F32:
        """K of one head, f32 [rows, head_dim]. A copy."""
        return self._head_rows(kv_head, keys=True)

    def head_values(self, kv_head: int) -> F32:
        """V of one head, f32 [rows, head_dim]. A copy."""
        return self._head_rows(kv_head, keys=False)

    def _head_rows(self, kv_head: int, *, keys: bool) -> F32:
        slot = self._slots.get(kv_head)
        if slot is None:
            return np.zeros((0, self.head_dim), np.float32)
        return self._store.keys(slot) if keys else self._store.values(slot)

    # Rows in and out

    def append(self, k: F32, v: F32, alive: Sequence[bool] | None = None) -> None:
        """k, v: f32 [rows, kv_heads, head_dim] (or flat), K already rotated. Dead heads (`alive[h]` false) store
        nothing; a head is dead or alive for a whole sequence. Raises KvShapeError."""
        k, v = self._rows_of(k, "k"), self._rows_of(v, "v")
        if len(k) != len(v):
            raise KvShapeError(f"{len(k)} rows of K with {len(v)} rows of V")
        self._settle_alive(alive)
        slots = list(self._slots)
        self._store.append(k[:, slots], v[:, slots])
        self._next += len(k)
        self._describe()

    def _rows_of(self, x: F32, name: str) -> F32:
        array = np.asarray(x, np.float32)
        width = self.num_kv_heads * self.head_dim
        if array.size % width:
            raise KvShapeError(
                f"{name} of {array.size} values: rows of {self.num_kv_heads}×{self.head_dim} are expected"
            )
        return array.reshape(-1, self.num_kv_heads, self.head_dim)

    def _settle_alive(self, alive: Sequence[bool] | None) -> None:
        wanted = [h for h in range(self.num_kv_heads) if not alive or alive[h]]
        if alive and len(alive) != self.num_kv_heads:
            raise KvShapeError(f"alive has {len(alive)} entries for {self.num_kv_heads} KV heads")
        if wanted != list(self._slots):
            if self.seq_len or self._alive_known:
                raise KvShapeError(f"heads alive changed from {list(self._slots)} to {wanted} within a sequence")
            self._start(wanted)
        self._alive_known = True

    def truncate_last(self, count: int) -> None:
        """Drop the newest `count` rows and any scratch. Raises RollbackError below a change of form."""
        target = max(self._next - count, 0)
        if target < self._rollback_floor:
            raise RollbackError(
                f"rollback to position {target}: rows below {self._rollback_floor} changed their form and cannot be"
                " undone; resume from tokens"
            )
        self.linear_scratch = np.zeros(0, np.float32)
        dropped = min(count, self.seq_len)
        self._store.truncate(self.seq_len - dropped)
        self._importance.truncate(self.seq_len)
        self._abs_max.rows_changed(self.seq_len)
        self._next -= dropped
        self._describe()

    def truncate_to(self, position: int) -> None:
        """Drop every row at or above `position` (a no-op for the rows when there are none)."""
        self.truncate_last(max(self._next - position, 0))

    def clear(self) -> None:
        """Forget the sequence; sinks and what else belongs to the layer stay."""
        self.linear_state = np.zeros(0, np.float32)
        self.linear_scratch = np.zeros(0, np.float32)
        self._abs_max.reset()
        self._start(range(self.num_kv_heads))
        self._generation = next(_generations)

    # Compiled kernels

    def reserve(self, rows: int) -> int:
        """Room for `rows` rows behind the stored ones; returns the address of `table` (see `table.py`)."""
        self._alive_known = True
        if self._store.reserve(rows):
            self._describe()
        return self._table_address

    def commit(self, rows: int) -> None:
        """Count `rows` rows that compiled code has written behind the stored ones."""
        self._store.rows += rows
        self._next += rows
        self.table[Header.SEQ] = self._store.rows

    def _describe(self) -> None:
        """Bring `table` up to date with the storage."""
        table = self.table
        self._table_address = table.ctypes.data
        table[Header.SEQ] = self.seq_len
        table[Header.KV_HEADS] = self.num_kv_heads
        table[Header.PADDED_DIM] = padded(self.head_dim)
        table[Header.HEAD_DIM] = self.head_dim
        table[Header.SEGMENTS] = self._store.describe(table[HEADER_FIELDS:])

    # Attention

    def attend(self, q: F32, kv_head: int) -> tuple[F32, F32]:
        """One query [head_dim] over every row, scale 1/√head_dim → (out [head_dim], probabilities [rows])."""
        out, probs = self._attend(np.asarray(q, np.float32).reshape(1, -1), kv_head, 0, self.seq_len)
        return out[0], probs[0]

    def attend_group(
        self, q_group: F32, kv_head: int, out: F32, importance: F32, scale: float | None = None, first: int = 0,
        softcap: float = 0.0, sinks: F32 | Sequence[float] = (),
    ) -> None:  # fmt: skip
        """The query heads of one KV head: `attend_group_upto` over every stored row."""
        self.attend_group_upto(q_group, kv_head, out, importance, scale, first, softcap, self.seq_len, sinks)

    def attend_group_upto(
        self, q_group: F32, kv_head: int, out: F32, importance: F32, scale: float | None = None, first: int = 0,
        softcap: float = 0.0, upto: int | None = None, sinks: F32 | Sequence[float] = (),
    ) -> None:  # fmt: skip
        """The query heads of one KV head over stored rows [first, upto): what the cache gave when it held `upto` rows.

        q_group and out: f32 [heads · head_dim], out written in place; `importance` f32 [≤ rows]: each head's
        probabilities are added to it. `scale` defaults to 1/√head_dim; `softcap` 0 is off; `sinks` is one logit per
        head, or empty. The newest row stays visible whatever `first` says. Bit-equal to one head at a time.
        """
        q = np.asarray(q_group, np.float32).reshape(-1, self.head_dim)
        rows = self.head_len(kv_head) if upto is None else min(upto, self.head_len(kv_head))
        result, probs = self._attend(q, kv_head, min(first, max(rows - 1, 0)), rows, scale, softcap, sinks)
        out.reshape(q.shape)[:] = result
        lo = min(first, max(rows - 1, 0))
        hi = min(len(importance), rows)
        if hi > lo:
            for head_probs in probs:
                importance[lo:hi] += head_probs[: hi - lo]

    def attend_chunk(
        self, q: F32, first_row: int, num_heads: int, out: F32, scale: float | None = None, window: int | None = None,
        softcap: float = 0.0, keep_importance: bool = True,
    ) -> None:  # fmt: skip
        """Causal attention of a chunk whose rows are stored already: query i sees stored rows up to first_row + i.

        q and out f32 [rows · num_heads · head_dim]; `window` rows at most are visible (None: all); the layer's
        `sinks` apply. Every row's result is what `attend_group_upto` gives for it, bit for bit. The rows'
        probabilities are added to `importance`, one row after the other.
        """
        group = self._heads_per_kv(num_heads)
        queries = np.asarray(q, np.float32).reshape(-1, num_heads, self.head_dim)
        results = out.reshape(queries.shape)
        for i, heads in enumerate(queries):
            upto = first_row + i + 1
            first = max(upto - window, 0) if window else 0
            mass = np.zeros(upto, np.float32)
            for g in range(self.num_kv_heads):
                at = slice(g * group, (g + 1) * group)
                sinks = () if self.sinks is None else self.sinks[at]
                head_out = np.empty(group * self.head_dim, np.float32)
                self.attend_group_upto(heads[at], g, head_out, mass, scale, first, softcap, upto, sinks)
                results[i, at] = head_out.reshape(group, -1)
            if keep_importance:
                self.accumulate_imp(mass)

    def _heads_per_kv(self, num_heads: int) -> int:
        if num_heads % self.num_kv_heads:
            raise KvShapeError(f"{num_heads} query heads do not divide over {self.num_kv_heads} KV heads")
        return num_heads // self.num_kv_heads

    def _attend(
        self, q: F32, kv_head: int, first: int, upto: int, scale: float | None = None, softcap: float = 0.0,
        sinks: F32 | Sequence[float] = (),
    ) -> tuple[F32, F32]:  # fmt: skip
        slot = self._slots.get(kv_head)
        sink_logits = np.asarray(sinks, np.float32)
        if len(sink_logits) not in (0, len(q)):
            raise KvShapeError(f"{len(sink_logits)} sink logits for {len(q)} heads")
        if slot is None or upto <= first:
            return np.zeros_like(q), np.zeros((len(q), 0), np.float32)
        wide = np.zeros((len(q), padded(self.head_dim)), np.float32)
        wide[:, : self.head_dim] = q
        softmax = Softmax(self.head_dim**-0.5 if scale is None else scale, softcap, sink_logits)
        bounds = np.full(len(q), first), np.full(len(q), upto)
        out, probs, _ = attend([self._store], slot, wide, *bounds, softmax)
        return out[:, : self.head_dim], probs

    def accumulate_imp(self, probs: F32) -> None:
        """Add a mass per stored row (as many as are given) to `importance`."""
        self._importance.add(np.asarray(probs, np.float32)[: self.seq_len])

    # Bytes, maxima

    def memory_bytes(self) -> int:
        """Bytes of everything the sequence stores: rows, importance once there is any, recurrent state and scratch."""
        return self.attention_bytes() + self.recurrent_bytes()

    def attention_bytes(self) -> int:
        """Bytes of K, V and importance, padding and spare capacity not counted."""
        return self._store.rows * self._store.row_bytes + self._importance.stored_bytes(self.seq_len)

    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent state and of its scratch."""
        return self.linear_state.nbytes + self.linear_scratch.nbytes

    def kv_abs_max(self) -> tuple[float, float]:
        """(max |k|, max |v|) of the rows so far, +inf once one is inf or NaN. Scans new rows only."""
        first, rows = self._abs_max.scanned, self.seq_len
        slots = range(len(self._slots))
        k_max = max((abs_max(self._store.keys(s, first)) for s in slots), default=0.0)
        v_max = max((abs_max(self._store.values(s, first)) for s in slots), default=0.0)
        return self._abs_max.fold(rows, k_max, v_max)

    def kv_abs_max_after(self, first: int, upto: int, k_max: float, v_max: float) -> tuple[float, float]:
        """`kv_abs_max` for a caller that knows the maxima of rows [first, upto): taken over only if these rows
        continue the scanned ones and end the cache; scanned otherwise."""
        if self._abs_max.scanned != first or self.seq_len != upto or first > upto:
            return self.kv_abs_max()
        return self._abs_max.fold(upto, k_max, v_max)

    # Wire

    def set_linear_wire_allowed(self, allowed: bool) -> None:
        """Whether the unversioned record, which carries no operator identity, is accepted."""
        self._linear_wire_allowed = allowed

    def _wire_state(self) -> LayerState:
        return LayerState(
            kind=self.wire_kind, layer=self.wire_layer, identity=self.wire_identity, num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim, mode=self.mode, unversioned_allowed=self._linear_wire_allowed,
        )  # fmt: skip

    def export_wire(self, f16: bool = False) -> bytes:
        """This layer's state as one record of the cache wire, version 2 (`docs/kv-cache.md`, *Cache wire*)."""
        heads = range(self.num_kv_heads)
        record = Record(
            f16=f16, position=self._next, base=self._base, rows=self.seq_len, linear=self.linear_state,
            importance=self.importance, k=[self.head_keys(h) for h in heads], v=[self.head_values(h) for h in heads],
        )  # fmt: skip
        return export_record(self._wire_state(), record)

    def import_wire(self, data: bytes | bytearray | memoryview) -> None:
        """Become the state of a record. Everything is checked first: a refused record (RecordError) leaves the layer
        untouched."""
        record = parse_record(self._wire_state(), memoryview(data).cast("B"))
        self.linear_scratch = np.zeros(0, np.float32)
        self.linear_state = record.linear
        self._abs_max.reset()
        alive = [h for h in range(self.num_kv_heads) if len(record.k[h]) or not record.rows]
        self._start(alive)
        self._alive_known = bool(record.rows)
        self._store.replace([record.k[h] for h in alive], [record.v[h] for h in alive], record.rows)
        if record.importance.view(np.uint32).any():
            self.accumulate_imp(record.importance)
        self._base = self._rollback_floor = record.base
        self._next = record.position
        self._generation = next(_generations)
        self._describe()
