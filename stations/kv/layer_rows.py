"""A layer's rows and what is counted about them: two counters, importance, maxima, generation, the kernels' table.

*seq_len* counts the rows stored, *pos_len* is the position the next row gets, *base* the position of stored row 0:
rows can leave the front (a sliding tail) or the middle (eviction), and keys keep the position they were written at.
Every index of the attend family is one of stored rows.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import numpy as np

from aeonflow.kv_options import EXACT_SINKS, Barrier

from .absmax import AbsMax, abs_max
from .errors import KvFormError, KvShapeError, RollbackError
from .eviction import EvictionPolicy
from .importance import Importance
from .memory import padded
from .reading import Reading
from .row_store import RowPair, check_mode, describe, first_rows, make_store, read_rows, stored_bytes
from .streams import F32, I64
from .table import HEADER_FIELDS, TABLE_FIELDS, Header

_generations = itertools.count(1)


class LayerRows:
    """See the module. `mode` is "f32", "f16", "q8", "q8k", "q8v" or "q4"; `exact_recent` newest rows stay exact beside
    coded ones (default 64 for q4, else 0), and with them the first `exact_sinks`."""

    def __init__(
        self, num_kv_heads: int, head_dim: int, mode: str = "f32", capacity: int = 0, *,
        exact_recent: int | None = None, exact_sinks: int = EXACT_SINKS,
    ) -> None:  # fmt: skip
        self._recent = check_mode(mode, exact_recent)
        if num_kv_heads < 1 or head_dim < 1:
            raise KvShapeError(f"{num_kv_heads} KV heads of {head_dim} dims: both must be at least 1")
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.mode = mode
        self.table: I64 = np.zeros(TABLE_FIELDS, np.int64)
        self._table_address = self.table.ctypes.data
        self.reading = Reading(self.table)
        self._free = 0  # rows that compiled code may write before anything has to be looked at again
        self._exact_sinks = exact_sinks
        self._capacity = capacity
        self._abs_max = AbsMax()
        self._tail_window: int | None = None
        self._new_generation()
        self._start(range(num_kv_heads))

    def _start(self, alive: Sequence[int]) -> None:
        """Empty storage for the heads named by `alive`, at position 0."""
        self._slots = {head: slot for slot, head in enumerate(alive)}
        self._alive_known = False
        self._store = make_store(
            self.mode, len(self._slots), self.head_dim, self._capacity, self._recent, self._exact_sinks
        )
        self._importance = Importance(self._capacity)
        self._abs_max.reset()
        self._positions: I64 | None = None  # of the first stored rows, once rows left the middle
        self._base = 0
        self._next = 0
        self._form_position = 0
        self._describe()

    def _new_generation(self) -> None:
        self._generation = next(_generations)

    # counters

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
    def tail_window(self) -> int | None:
        """The window `trim_window` keeps, once it was called; a property of the layer, kept by `clear`."""
        return self._tail_window

    @property
    def is_evictable(self) -> bool:
        """Whether the layer's rows grow without a bound of their own."""
        return self._tail_window is None

    @property
    def positions(self) -> I64:
        """int64 [seq_len]: the position each stored row was written at."""
        known = np.zeros(0, np.int64) if self._positions is None else self._positions
        rest = self.seq_len - len(known)
        return np.concatenate([known, np.arange(self._next - rest, self._next)])

    @property
    def importance(self) -> F32:
        """f32 [seq_len]: the undecayed sum of the probabilities with which all heads read each row. A copy."""
        return self._importance.of(self.seq_len)

    @property
    def latest_mass(self) -> F32:
        """f32 [seq_len]: the part of `importance` that rows of the open block have read, and of the block before."""
        return self._importance.latest(self.seq_len)

    @property
    def barriers(self) -> Barrier | None:
        """The positions at which the rows change form (`aeonflow.kv_options`), or None."""
        return self._store.barriers

    @property
    def rollback_floor(self) -> int:
        """The lowest position that `truncate_to` can restore: nothing below changed form, no row above is missing, no
        mass that was read above has joined for good."""
        return max(self._rows_floor, self._importance.block_end)

    @property
    def _rows_floor(self) -> int:
        """`rollback_floor` of the rows alone."""
        window = self._base + self._tail_window - 1 if self._tail_window and self._base else 0
        return max(self._form_position, window)

    def restorable(self, position: int) -> int:
        """The highest position up to `position` that `truncate_to` can restore: below the masses that have joined only
        the end of the last block. Nothing below `rollback_floor` can be."""
        return position if position >= self._importance.joined_end else self._importance.block_end

    def rows_below(self, position: int) -> list[RowPair]:
        """The storage of the rows below `position`, shared with the layer and shorter where that holds more: to be read
        until the layer's next change. Raises RollbackError where such rows have changed form or left."""
        gone = max(self._next - position, 0)
        if gone and position < self._rows_floor:
            floor = self._rows_floor
            raise RollbackError(f"rows below {position} cannot be told apart: rows changed form at {floor}")
        return first_rows(self._store, max(self.seq_len - gone, 0))

    # rows in and out

    def append(self, k: F32, v: F32, alive: Sequence[bool] | None = None) -> None:
        """k, v: f32 [rows, kv_heads, head_dim] (or flat), K already rotated. Dead heads (`alive[h]` false) store
        nothing; a head is dead or alive for a whole sequence. Storage is as if the rows had come one by one; what
        attends to them in between ends its passes at `room`. Raises KvShapeError."""
        k, v = self._rows_of(k, "k"), self._rows_of(v, "v")
        if len(k) != len(v):
            raise KvShapeError(f"{len(k)} rows of K with {len(v)} rows of V")
        self._settle_alive(alive)
        slots = list(self._slots)
        done = 0
        while done < len(k):
            self._change_form()
            until = done + min(self._store.room(), len(k) - done)
            self._store.append(k[done:until, slots], v[done:until, slots])
            self._next += until - done
            done = until
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
        given = [True] * self.num_kv_heads if alive is None or not len(alive) else list(alive)
        if len(given) != self.num_kv_heads:
            raise KvShapeError(f"alive has {len(given)} entries for {self.num_kv_heads} KV heads")
        wanted = [head for head, is_alive in enumerate(given) if is_alive]
        if wanted != list(self._slots):
            if self._alive_known:
                raise KvShapeError(f"heads alive changed from {list(self._slots)} to {wanted} within a sequence")
            at = self._next  # above 0 with no rows: those of an imported tail were all taken back before it travelled
            self._start(wanted)
            self._base = self._form_position = self._next = at
        self._alive_known = True

    def _change_form(self) -> bool:
        """The change of form that is due before the next row, if any; rows below it cannot be rolled back."""
        if not self._store.change_form():
            return False
        self._form_position = self._next
        self._new_generation()
        return True

    def room(self) -> int:
        """Rows that a pass may append now without crossing a state barrier."""
        return self._store.room()

    def truncate_last(self, count: int) -> None:
        """Drop the newest `count` rows. Raises RollbackError, naming the positions, below `rollback_floor` and where
        the masses of rows have joined (`restorable`)."""
        target = max(self._next - count, 0)
        if target < self.rollback_floor and target < self._next:
            raise RollbackError(
                f"rollback to position {target}: the cache can be restored down to {self.rollback_floor} only, where"
                " its rows changed form or left; resume from tokens"
            )
        if self.restorable(target) < target:
            raise RollbackError(
                f"rollback to position {target}: what rows up to {self._importance.joined_end} have read has joined"
                f" since {self._importance.block_end}, which can be restored"
            )
        dropped = min(count, self.seq_len)
        self._store.truncate(self.seq_len - dropped)
        self._next -= dropped
        self._importance.truncate(self.seq_len, self._next)
        self._abs_max.rows_changed(self.seq_len)
        self._describe()

    def truncate_to(self, position: int) -> None:
        """Drop every row at or above `position`; nothing to do where the cache is shorter."""
        self.truncate_last(max(self.pos_len - position, 0))

    def clear(self) -> None:
        """Forget the sequence; the window and what else belongs to the layer stay."""
        self._start(range(self.num_kv_heads))
        self._new_generation()

    def _take_rows(self, k: Sequence[F32], v: Sequence[F32], rows: int, base: int, importance: F32) -> None:
        """Become `rows` rows from position `base` on; k, v one [rows, head_dim] a head, a dead one's is empty."""
        alive = [h for h in range(self.num_kv_heads) if len(k[h]) or not rows]
        self._start(alive)
        self._alive_known = bool(rows)
        empty = np.zeros((rows, 0, self.head_dim), np.float32)
        stacked = [np.stack([x[h] for h in alive], axis=1) if alive else empty for x in (k, v)]
        self._store.append(*stacked)
        if importance.any():
            self._importance.add(importance)
        self._base = self._form_position = base
        self._next = base + rows
        self._new_generation()
        self._describe()

    # rows that leave

    def trim_window(self, window: int, slack: int, align: int) -> int:
        """`trim_window_anchored` without an anchor."""
        return self.trim_window_anchored(window, slack, align, 1 << 62)

    def trim_window_anchored(self, window: int, slack: int, align: int, anchor: int) -> int:
        """Drop front rows that a sliding window no longer reads, once more than 2 · window are stored.

        window + slack ≤ rows left < window + slack + align, base a multiple of `align` and never past
        anchor − window − slack, so that a rollback to anchor − slack finds its window. Later windowed attends are bit
        for bit those of the untrimmed cache. Returns the rows dropped: 0 for window 0, and while 8-bit columns are
        not frozen yet (they are taken from every row).
        """
        if window <= 0:
            return 0
        self._tail_window = window
        if self.seq_len <= 2 * window or self._positions is not None:
            return 0
        step = max(align, 1)
        reach = max(min(self._next, anchor) - window - slack, 0)
        base = reach // step * step
        while base > self._base and not self._store.can_drop(base - self._base):
            base -= step
        count = base - self._base
        if count <= 0:
            return 0
        self._importance.gather(np.arange(count, self.seq_len))
        self._store.drop_front(count)
        self._abs_max.front_dropped(count)
        self._base = base
        self._new_generation()
        self._describe()
        return count

    def evict(self, keep: int, policy: EvictionPolicy, by: F32 | None = None) -> int:
        """Keep `keep` rows, chosen by `policy`; K, V and importance alike. Returns the rows dropped.

        Rows are weighed by `by` f32 [seq_len], by default their importance.

        A sliding tail bounds itself and is left alone. The rows' positions stay theirs; a rollback below the
        present depth is refused from now on. Raises KvFormError for rows coded in groups.
        """
        if not self.is_evictable or self.seq_len <= keep:
            return 0
        if keep < 1:
            raise KvShapeError(f"eviction to {keep} rows: at least 1 must stay")
        kept = policy.kept(self.importance if by is None else by, keep)
        dropped = self.seq_len - len(kept)
        positions = self.positions[kept]
        self._store.gather(kept)
        self._importance.gather(kept)
        self._abs_max.rows_changed(0)
        self._base = int(positions[0])
        self._positions = None if self._base + len(kept) == self._next else positions
        self._form_position = self._next
        self._new_generation()
        self._describe()
        return dropped

    # compiled kernels

    def reserve(self, rows: int) -> int:
        """Room for a pass of `rows` rows behind the stored ones; returns the address of `table` (`table.py`).

        Makes the change of form that is due. Raises KvFormError if the pass would cross the next one.
        """
        if self.reading.keeps_mass:
            self.reading.begin_pass(self._importance.scratch(rows, self.seq_len + rows))
        if rows <= self._free:
            return self._table_address
        self._alive_known = True
        is_changed = rows > 0 and self._change_form()
        if rows > self.room():
            raise KvFormError(
                f"a pass of {rows} rows at {self.seq_len} stored rows crosses the state barrier {self.room()} rows on:"
                " split it there"
            )
        if self._store.reserve(rows) or is_changed:
            self._describe()
        self._free = min(self._store.spare(), self.room())
        return self._table_address

    def commit(self, rows: int) -> None:
        """Count `rows` rows that compiled code has written behind the stored ones."""
        self._free -= rows
        self._next += rows
        self.table[Header.SEQ] = self._store.commit(rows)
        if self.reading.keeps_mass:
            self._importance.hold(self._next - rows, self.reading.end_pass())

    def pin(self) -> tuple[object, ...]:
        """What keeps the memory that `table` names now alive, for compiled code that may still be reading it."""
        return self.table, *(copy.copy(stream) for pair in self._store.segments() for stream in pair.streams())

    def _describe(self) -> None:
        """Bring `table` up to date with the storage."""
        self._free = 0
        table = self.table
        table[Header.SEQ] = self._store.rows
        table[Header.KV_HEADS] = self.num_kv_heads
        table[Header.PADDED_DIM] = padded(self.head_dim)
        table[Header.HEAD_DIM] = self.head_dim
        table[Header.SEGMENTS] = describe(self._store, table[HEADER_FIELDS:])

    # mass, bytes, maxima

    def accumulate_imp(self, probs: F32) -> None:
        """Add a mass per stored row (as many as are given) to `importance`."""
        self._importance.add(np.asarray(probs, np.float32)[: self.seq_len])

    def hold_imp(self, position: int, probs: F32) -> None:
        """The mass that the row at `position` gives while it may still be rejected: added once `settle` passes it,
        forgotten when it is taken back."""
        self._importance.hold(position, np.array(probs, np.float32, ndmin=2)[:, : self.seq_len])

    def settle(self, position: int) -> None:
        """Every row below `position` is final: the mass they were holding joins `importance`."""
        self._importance.settle(position, self.seq_len)

    def end_mass_block(self, position: int) -> None:
        """What rows below `position` have read, all of it settled, is for good: `latest_mass` begins a new block."""
        self._importance.end_block(position)

    def rows_bytes(self) -> int:
        """Bytes of K, V, scales, columns and importance; padding and spare room are not counted."""
        return stored_bytes(self._store) + self._importance.stored_bytes(self.seq_len)

    def kv_abs_max(self) -> tuple[float, float]:
        """(max |k|, max |v|) of the rows so far, +inf once one is inf or NaN. Scans new rows only."""
        first, slots = self._abs_max.scanned, range(len(self._slots))
        k_max = max((abs_max(read_rows(self._store, s, first, keys=True)) for s in slots), default=0.0)
        v_max = max((abs_max(read_rows(self._store, s, first, keys=False)) for s in slots), default=0.0)
        return self._abs_max.fold(self._store.rows, k_max, v_max)

    def kv_abs_max_after(self, first: int, upto: int, k_max: float, v_max: float) -> tuple[float, float]:
        """`kv_abs_max` for a caller that knows the maxima of rows [first, upto): taken over only if these rows
        continue the scanned ones and end the cache; scanned otherwise."""
        if self._abs_max.scanned != first or self.seq_len != upto or first > upto:
            return self.kv_abs_max()
        return self._abs_max.fold(upto, k_max, v_max)
