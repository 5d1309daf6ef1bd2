"""A layer's rows with, if wanted, an O(1) overlay over them: collecting queries, sealed, or failed (`overlay.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aeonflow.kv_options import EXACT_SINKS, Barrier

from .attend_family import AttendFamily
from .errors import KvFormError, KvShapeError, RollbackError
from .nystrom import OverlayShape, Rect
from .overlay import Overlay, SealReport
from .overlay_group import PLAIN, OverlayGroup, OverlayKernels
from .streams import F32
from .table import Header


class OverlayLayer(AttendFamily):
    """See the module. Without `o1_begin` it is an `AttendFamily`. A sealed layer stores no rows."""

    def __init__(
        self, num_kv_heads: int, head_dim: int, mode: str = "f32", capacity: int = 0, *,
        exact_recent: int | None = None, exact_sinks: int = EXACT_SINKS,
    ) -> None:  # fmt: skip
        self._overlay: Overlay | None = None
        super().__init__(num_kv_heads, head_dim, mode, capacity, exact_recent=exact_recent, exact_sinks=exact_sinks)

    @property
    def barriers(self) -> Barrier | None:
        """The positions at which the layer changes form, or None."""
        if self._overlay is not None and self._overlay.boundary is not None:
            return Barrier(self._overlay.boundary)
        return super().barriers

    def room(self) -> int:
        """Rows that a pass may append now without crossing a state barrier."""
        boundary = self._overlay.boundary if self._overlay is not None and self._overlay.is_collecting else None
        return super().room() if boundary is None else max(boundary - self.seq_len, 0)

    def append(self, k: F32, v: F32, alive: Sequence[bool] | None = None) -> None:
        """`LayerRows.append`. A layer whose seal failed ignores rows until it is cleared (`o1_error` says why)."""
        if self.o1_error is not None:
            return
        self._require_rows("append")
        super().append(k, v, alive)

    def _require_rows(self, what: str) -> None:
        """KvFormError where no rows are stored."""
        if self.o1_sealed:
            raise KvFormError(f"{what} on a layer sealed at O(1): use o1_step")

    def reserve(self, rows: int) -> int:
        """`LayerRows.reserve`. Rows of a sealed layer wait there until attention lets them join."""
        if not self.o1_sealed:
            self._require_rows("reserve")
        if self._overlay is not None and self._overlay.is_collecting:
            self._overlay.begin_trace(self.table, rows, self.head_dim)
        return super().reserve(rows)

    def commit(self, rows: int) -> None:
        """`LayerRows.commit`. What a sealed layer was given has joined its groups."""
        if self.o1_sealed:
            self._next += rows
            return
        super().commit(rows)
        if self._overlay is not None and self._overlay.is_collecting:
            self._overlay.end_trace(rows)

    def truncate_last(self, count: int) -> None:
        """`LayerRows.truncate_last`; of a sealed layer rows since its last mark can be taken back."""
        count = min(count, self.pos_len)
        overlay = self._overlay
        if overlay is None or not overlay.is_sealed:
            super().truncate_last(count)
            if overlay is not None:
                overlay.truncate(self.seq_len)
        elif count:
            if not overlay.can_take_back(count):
                raise RollbackError(f"rollback of {count} rows of a layer sealed at O(1): resume from tokens")
            overlay.take_back(count)
            self._next -= count

    def clear(self) -> None:
        """`LayerRows.clear`; the overlay goes with the sequence."""
        self._overlay = None
        super().clear()

    def _describe(self) -> None:
        super()._describe()
        overlay = self._overlay
        self.table[Header.OVERLAY] = overlay.records.ctypes.data if overlay is not None and overlay.is_sealed else 0
        self.table[Header.TRACE] = 0

    @property
    def has_overlay(self) -> bool:
        return self._overlay is not None

    @property
    def o1_sealed(self) -> bool:
        return self._overlay is not None and self._overlay.is_sealed

    @property
    def o1_collecting(self) -> bool:
        return self._overlay is not None and self._overlay.is_collecting

    @property
    def o1_error(self) -> str | None:
        """Why the seal failed; only `clear` lifts it."""
        return None if self._overlay is None else self._overlay.error

    @property
    def o1_report(self) -> SealReport | None:
        """What the guard decided at the seal."""
        return None if self._overlay is None else self._overlay.report

    def o1_begin(
        self, m: int, w: int, sink: int, rect: Rect | str = Rect.AGGREGATE, seal_at: int | None = None, *,
        stride: int = 1, guarded: bool = True,
    ) -> None:  # fmt: skip
        """Collect queries from now on: the layer is empty. `seal_at` names the state barrier; None leaves the moment
        to the caller. Unguarded, every head keeps its far field whether it helps or not."""
        self._require_rows("o1_begin")
        if self._next:
            raise KvFormError(f"o1_begin at position {self._next}: an overlay begins on an empty layer")
        self._overlay = Overlay(OverlayShape(m, w, sink, Rect(rect)), seal_at, stride, guarded)

    def o1_compute_with(self, num_heads: int, kernels: OverlayKernels = PLAIN) -> None:
        """Compiled code that attends keeps the queries of `num_heads` heads, `kernels` compute the seal: in the bits of
        the backend that steps the layer afterwards."""
        if self._overlay is not None:
            self._overlay.heads, self._overlay.kernels = num_heads, kernels

    def o1_push_q(self, q_all: F32) -> None:
        """Rotated queries of the rows being appended, f32 [rows, heads · head_dim], one row if flat. Ignored unless
        collecting."""
        if self._overlay is not None and self._overlay.is_collecting:
            self._overlay.push(np.atleast_2d(np.asarray(q_all, np.float32)))

    def o1_boundary_crossed_by(self, count: int) -> bool:
        """Whether `count` more rows would go past the boundary; ending on it does not."""
        return self._overlay is not None and self._overlay.crosses(self.seq_len, count)

    def o1_seal(self, num_heads: int) -> bool:
        """Put landmarks in place of the rows, from max(requested, window + sink + 9) rows on; earlier the layer stays
        exact. True once sealed. What makes it impossible empties the layer and is latched in `o1_error`."""
        overlay = self._overlay
        if overlay is None or not overlay.is_collecting:
            return self.o1_sealed
        rows, heads = self.seq_len, range(self.num_kv_heads)
        if rows < max(overlay.boundary or 0, overlay.shape.seal_floor):
            return False
        is_dense = len(self._slots) == self.num_kv_heads
        position = self._next
        try:
            overlay.check(rows, num_heads, self.num_kv_heads, self.head_dim, is_dense, self.mode)
        except KvFormError as error:
            overlay.fail(str(error))
            position = 0
        else:
            overlay.seal([self.head_keys(h) for h in heads], [self.head_values(h) for h in heads], num_heads)
        self._capacity = 0  # from now on only the rows of a pass wait in it
        self._start(heads)
        self._next = self._form_position = position
        self._new_generation()
        return overlay.is_sealed

    def o1_step(self, q_all: F32, k_new: F32, v_new: F32, num_heads: int) -> F32:
        """One row of a sealed layer: q f32 [heads · head_dim] rotated, k and v [kv_heads · head_dim] → like q, flat."""
        if self._overlay is None or not self._overlay.is_sealed:
            raise KvFormError("o1_step on a layer that is not sealed")
        self._heads_per_kv(num_heads)
        q = np.asarray(q_all, np.float32).reshape(num_heads, self.head_dim)
        out = self._overlay.step(q, self._rows_of(k_new, "k")[0], self._rows_of(v_new, "v")[0])
        self._next += 1
        return out.ravel()

    def o1_snapshot(self) -> tuple[int, list[OverlayGroup]]:
        """A sealed layer's state, bit for bit."""
        if self._overlay is None or not self._overlay.is_sealed:
            raise KvFormError("o1_snapshot of a layer that is not sealed")
        return self._next, self._overlay.snapshot()

    def o1_mark(self) -> None:
        """Rows of a sealed layer that come from now on can be taken back, the first `UNDO_ROWS` of them."""
        if self._overlay is not None:
            self._overlay.mark()

    def o1_restore(self, snapshot: tuple[int, list[OverlayGroup]]) -> None:
        if self._overlay is None or not self._overlay.is_sealed:
            raise KvFormError("o1_restore on a layer that is not sealed")
        self._next, groups = snapshot
        self._overlay.restore(groups)
        self._new_generation()

    def o1_recollect(self, k: F32, v: F32, q: F32, stride: int, rows: int) -> bool:
        """Open a sealed layer again from rows kept elsewhere: k, v f32 [rows, kv_heads, head_dim], q its query trace,
        one row in `stride`. The next seal is due at `rows`. False if the layer is not sealed."""
        if self._overlay is None or not self._overlay.is_sealed:
            return False
        keys, values = self._rows_of(k, "k"), self._rows_of(v, "v")
        trace = np.asarray(q, np.float32).reshape(-(-rows // max(stride, 1)), -1)
        if len(keys) != rows or len(values) != rows:
            raise KvShapeError(f"{len(keys)} rows of K and {len(values)} of V for {rows} rows")
        sealed = self._overlay
        overlay = Overlay(sealed.shape, rows, stride, sealed.guarded)
        overlay.heads, overlay.kernels = sealed.heads, sealed.kernels
        overlay.take_trace(trace, rows)
        self._overlay = None
        self._start(range(self.num_kv_heads))
        self.append(keys, values)
        self._overlay = overlay
        self._new_generation()
        return True
