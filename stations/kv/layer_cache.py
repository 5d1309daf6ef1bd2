"""One layer's state of one sequence: rows with their attend family, or a recurrent state, a ring, an O(1) overlay."""

from __future__ import annotations

import numpy as np

from aeonflow.kv_options import EXACT_SINKS

from .errors import KvFormError, KvShapeError, RollbackError
from .eviction import EvictionPolicy
from .overlay_layer import OverlayLayer
from .recurrent import RecurrentState
from .ring import BoundedRing, RingRope, RingSnapshot, RingWeights
from .streams import F32
from .wire import (
    BoundedRecord,
    FullRecord,
    LayerState,
    LinearRecord,
    Record,
    RecordKind,
    export_record,
    parse_record,
)


class LayerKvCache(OverlayLayer):
    """See the module, `LayerRows` for the options and `AttendFamily` for the reads.

    Attributes of the layer, which `clear` and imports keep: `sinks`, `wire_kind`, `wire_layer`, `wire_identity`,
    and the ring's size. A ring, a recurrent and a sealed layer store no rows: `seq_len` counts what they hold.
    """

    def __init__(
        self, num_kv_heads: int, head_dim: int, mode: str = "f32", capacity: int = 0, *,
        exact_recent: int | None = None, exact_sinks: int = EXACT_SINKS,
    ) -> None:  # fmt: skip
        self.wire_kind = RecordKind.FULL
        self.wire_layer = 0
        self.wire_identity = 0
        self._linear_wire_allowed = True
        self._recurrent = RecurrentState()
        self._ring: BoundedRing | None = None
        super().__init__(num_kv_heads, head_dim, mode, capacity, exact_recent=exact_recent, exact_sinks=exact_sinks)

    # counters

    @property
    def seq_len(self) -> int:
        """Rows stored: of a ring those it holds, of a sealed layer none."""
        return self._store.rows if self._ring is None else len(self._ring)

    @property
    def is_evictable(self) -> bool:
        """Whether rows are stored that grow without a bound of their own and may leave."""
        is_own = self._ring is None and self._overlay is None and self.wire_kind is not RecordKind.LINEAR
        return is_own and super().is_evictable

    @property
    def stores_no_rows(self) -> bool:
        """Whether what was read is held in another form than rows, or is about to be."""
        return self._ring is not None or self._overlay is not None or self.wire_kind is not RecordKind.FULL

    def memory_bytes(self) -> int:
        """Bytes of everything the sequence stores: `attention_bytes` + `recurrent_bytes`."""
        return self.attention_bytes() + self.recurrent_bytes()

    def attention_bytes(self) -> int:
        """Bytes of rows, scales, columns and importance, of a ring, and of an overlay with its scratch."""
        ring = 0 if self._ring is None else self._ring.state_bytes
        return self.rows_bytes() + ring + (0 if self._overlay is None else self._overlay.memory_bytes)

    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent state and of its scratch."""
        return self._recurrent.stored_bytes

    # rows

    def _require_rows(self, what: str) -> None:
        if self._ring is not None:
            raise KvFormError(f"{what} on a ring of {self._ring.window} rows: use bounded_step")
        super()._require_rows(what)

    def truncate_last(self, count: int) -> None:
        """Take back the newest `count` rows, and any scratch. Raises RollbackError for more than can be undone."""
        if count < 0:
            raise KvShapeError(f"{count} rows to take back: 0 or more")
        count = min(count, self.pos_len)
        if self.wire_kind is RecordKind.LINEAR:
            if count > self._recurrent.undo_rows:
                raise RollbackError(f"rollback of {count} recurrent rows: {self._recurrent.undo_rows} can be undone")
            self._recurrent.take_back(count)
            self._next -= count
            return
        if self._ring is not None:
            self._ring.rollback(count)
            self._next -= count
        else:
            super().truncate_last(count)
        self._recurrent.drop_scratch()

    def clear(self) -> None:
        """Forget the sequence; sinks, window, the ring's size and what else belongs to the layer stay."""
        self._recurrent.reset()
        if self._ring is not None:
            self._ring.clear()
        super().clear()

    def trim_window_anchored(self, window: int, slack: int, align: int, anchor: int) -> int:
        """`LayerRows.trim_window_anchored`; nothing to do for a ring or an overlay, which bound themselves."""
        if self._ring is not None or self.has_overlay:
            return 0
        return super().trim_window_anchored(window, slack, align, anchor)

    def evict(self, keep: int, policy: EvictionPolicy, by: F32 | None = None) -> int:
        """`LayerRows.evict`; layers that bound themselves are left alone."""
        return super().evict(keep, policy, by) if self.is_evictable else 0

    # recurrent state

    @property
    def linear_state(self) -> F32:
        """The recurrent state, f32 [values]."""
        return self._recurrent.state

    @linear_state.setter
    def linear_state(self, state: F32) -> None:
        self._recurrent.state = np.asarray(state, np.float32).ravel()

    @property
    def linear_scratch(self) -> F32:
        """States from before the rows that may be rejected, f32 [rows · values]."""
        return self._recurrent.scratch

    @linear_scratch.setter
    def linear_scratch(self, scratch: F32) -> None:
        self._recurrent.scratch = np.asarray(scratch, np.float32).ravel()

    def linear_advance(self, states: F32, *, may_be_rejected: bool = False) -> None:
        """The states after each row of a pass, f32 [rows, values]; with `may_be_rejected` those before are kept.

        Raises KvFormError on a layer that holds rows.
        """
        if self.seq_len or self._overlay is not None:
            raise KvFormError(f"linear_advance on a layer of {self.seq_len} rows: a recurrent layer stores none")
        self.wire_kind = RecordKind.LINEAR
        self._recurrent.advance(np.asarray(states, np.float32), may_be_rejected=may_be_rejected)
        self._next += len(states)

    # ring

    def install_bounded(self, window: int) -> None:
        """Make this empty layer a ring of `window` rows, for good. Raises KvFormError on one that is not empty."""
        if self._next or self._overlay is not None:
            raise KvFormError(f"install_bounded at position {self._next}: a ring begins on an empty layer")
        self._ring = BoundedRing(self.num_kv_heads, self.head_dim, window)
        self.wire_kind = RecordKind.BOUNDED

    @property
    def bounded(self) -> BoundedRing:
        """The ring. Raises KvFormError on a layer without one."""
        if self._ring is None:
            raise KvFormError("this layer has no ring: install_bounded comes first")
        return self._ring

    def bounded_step(
        self, q: F32, k: F32, v: F32, weights: RingWeights, rope: RingRope, scale: float, num_heads: int, out: F32
    ) -> None:
        """Insert raw k, v f32 [kv_heads · head_dim], then attend raw q [heads · head_dim] into `out`, in place."""
        ring, shape = self.bounded, (self.num_kv_heads, self.head_dim)
        self._heads_per_kv(num_heads)
        ring.insert(np.asarray(k, np.float32).reshape(shape), np.asarray(v, np.float32).reshape(shape))
        self._next = ring.seen
        queries = np.asarray(q, np.float32).reshape(num_heads, self.head_dim)
        out.reshape(queries.shape)[:] = ring.attend(queries, weights, rope, scale)

    def bounded_chunk(
        self, q: F32, k: F32, v: F32, weights: RingWeights, rope: RingRope, scale: float, num_heads: int, out: F32
    ) -> None:
        """`bounded_step` for every row of a chunk in turn: q, out [rows · heads · head_dim], k, v alike."""
        keys, values = self._rows_of(k, "k"), self._rows_of(v, "v")
        queries = np.asarray(q, np.float32).reshape(len(keys), num_heads, self.head_dim)
        for i, row in enumerate(out.reshape(queries.shape)):
            self.bounded_step(queries[i], keys[i], values[i], weights, rope, scale, num_heads, row)

    def bounded_snapshot(self) -> RingSnapshot:
        return self.bounded.snapshot()

    def bounded_restore(self, snapshot: RingSnapshot) -> None:
        self.bounded.restore(snapshot)
        self._next = snapshot.seen
        self._new_generation()

    # wire

    def set_linear_wire_allowed(self, allowed: bool) -> None:
        """Whether the unversioned record, which carries no operator identity, is accepted."""
        self._linear_wire_allowed = allowed

    def _wire_state(self) -> LayerState:
        is_linear = self.wire_kind is RecordKind.LINEAR
        return LayerState(
            kind=self.wire_kind, layer=self.wire_layer, identity=self.wire_identity, num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim, mode=self.mode, unversioned_allowed=self._linear_wire_allowed,
            window=0 if self._ring is None else self._ring.window,
            linear_size=self._recurrent.state.size if is_linear else 0,
        )  # fmt: skip

    def export_wire(self, f16: bool = False) -> bytes:
        """This layer's state as one record of the cache wire, version 2 (`docs/kv-cache.md`, *Cache wire*)."""
        if self._overlay is not None:
            raise KvFormError("an O(1) overlay has no wire record: its landmarks cannot be undone")
        record: Record
        if self.wire_kind is RecordKind.LINEAR:
            record = LinearRecord(f16, self._next, self._recurrent.state)
        elif self.wire_kind is RecordKind.BOUNDED:
            record = BoundedRecord(f16, self.bounded.seen, self.bounded.k, self.bounded.v)
        else:
            heads = range(self.num_kv_heads)
            k, v = [self.head_keys(h) for h in heads], [self.head_values(h) for h in heads]
            state = self._recurrent.state
            record = FullRecord(f16, self._next, self._base, self.seq_len, state, self.importance, k, v)
        return export_record(self._wire_state(), record)

    def import_wire(self, data: bytes | bytearray | memoryview) -> None:
        """Become the state of a record. Everything is checked first: a refused record (RecordError) leaves the layer
        untouched. Whatever the layer was in the midst of (scratch, overlay) is dropped."""
        record = parse_record(self._wire_state(), memoryview(data).cast("B"))
        self._overlay = None
        self._recurrent.reset()
        match record:
            case FullRecord():
                self._recurrent.state = record.linear
                self._take_rows(record.k, record.v, record.rows, record.base, record.importance)
            case LinearRecord():
                self._start(range(self.num_kv_heads))
                self._recurrent.state = record.state
            case BoundedRecord():
                self._start(range(self.num_kv_heads))
                self.bounded.set_state(record.k, record.v, record.position)
        self._next = record.position
        self._new_generation()
