"""One layer's KV cache: rows with their attend family, a recurrent state, and the cache wire."""

from __future__ import annotations

import numpy as np

from .attend_family import AttendFamily
from .row_store import EXACT_SINKS
from .streams import F32
from .wire import LayerState, Record, RecordKind, export_record, parse_record


class LayerKvCache(AttendFamily):
    """The state of one layer of one sequence.

    Attributes of the layer, which `clear` and imports keep: `sinks`, `wire_kind`, `wire_layer`, `wire_identity`. Of
    the sequence: `linear_state` and `linear_scratch` (f32).
    """

    def __init__(
        self, num_kv_heads: int, head_dim: int, mode: str = "f32", capacity: int = 0, *,
        exact_recent: int | None = None, exact_sinks: int = EXACT_SINKS,
    ) -> None:  # fmt: skip
        self.wire_kind = RecordKind.FULL
        self.wire_layer = 0
        self.wire_identity = 0
        self.linear_state: F32 = np.zeros(0, np.float32)
        self.linear_scratch: F32 = np.zeros(0, np.float32)
        self._linear_wire_allowed = True
        super().__init__(num_kv_heads, head_dim, mode, capacity, exact_recent=exact_recent, exact_sinks=exact_sinks)

    def truncate_last(self, count: int) -> None:
        """Drop the newest `count` rows and any scratch. Raises RollbackError below `rollback_floor`."""
        super().truncate_last(count)
        self.linear_scratch = np.zeros(0, np.float32)

    def clear(self) -> None:
        """Forget the sequence; sinks and what else belongs to the layer stay."""
        self.linear_state = np.zeros(0, np.float32)
        self.linear_scratch = np.zeros(0, np.float32)
        super().clear()

    def memory_bytes(self) -> int:
        """Bytes of everything the sequence stores: `attention_bytes` + `recurrent_bytes`."""
        return self.attention_bytes() + self.recurrent_bytes()

    def attention_bytes(self) -> int:
        """Bytes of rows, scales, columns and importance."""
        return self.rows_bytes()

    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent state and of its scratch."""
        return self.linear_state.nbytes + self.linear_scratch.nbytes

    # wire

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
        self._take_rows(record.k, record.v, record.rows, record.base, record.importance)
