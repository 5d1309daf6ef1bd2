"""A sealed KV group: exact sinks and window, a far field for the query heads that gain by it, and the guard.

Memory does not grow: every head that does without the far field gives its bytes to the window. Everything lies as
compiled code reads it (`table.py`, *Group*), in the group's record; what is here is the plain version.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from aeonflow.kv_options import HELD_OUT_ROWS, UNDO_ROWS

from .memory import LANES, aligned_zeros, copied, from_tiles, padded, to_tiles
from .nystrom import FarField, OverlayShape, Rect, head_far_floats, near_sums
from .streams import F32
from .table import GROUP_FIELDS, GROUP_HEAD_FIELDS, SEGMENT_FIELDS, Group, GroupSegment, Segment

B1 = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]
_QUERIES_AT_ONCE = 16  # query heads that share the scratch of one step


class GroupRows(NamedTuple):
    """A group's prompt: q f32 [heads, t, dim] rotated, k and v [t, dim]."""

    q: F32
    k: F32
    v: F32

    def upto(self, rows: int) -> GroupRows:
        return GroupRows(self.q[:, :rows], self.k[:rows], self.v[:rows])


class OverlayKernels(Protocol):
    """Who computes: numpy (`PLAIN`), or a backend in the bits of its own kernels."""

    def fill(self, group: OverlayGroup, q: F32, prompt: GroupRows) -> None:
        """Landmarks and M of a prompt, q [far heads, t, dim] of it; its far rows join the sums in their order."""
        ...

    def replay(self, group: OverlayGroup, first: int, upto: int) -> None:
        """Rows [first, upto) of the ring join the far sums."""
        ...

    def step(self, group: OverlayGroup, q: F32, k: F32, v: F32) -> F32:
        """`OverlayGroup.step`."""
        ...

    def exact(self, prompt: GroupRows, first: int, scale: float) -> F32:
        """Attention of the rows from `first` on, each over all rows up to it, [rows, heads, dim]."""
        ...


class PlainKernels:
    """numpy: sums in an order of its own."""

    def fill(self, group: OverlayGroup, q: F32, prompt: GroupRows) -> None:
        far = group.far_field
        far.set_landmarks(q, prompt.k)
        rows = slice(group.shape.sink, len(prompt.k) - group.shape.window)
        far.add(prompt.k[rows], prompt.v[rows])

    def replay(self, group: OverlayGroup, first: int, upto: int) -> None:
        for row in range(first, upto):
            group.far_field.add(*group.ring_rows(np.array([row])))

    def step(self, group: OverlayGroup, q: F32, k: F32, v: F32) -> F32:
        return group.step(q, k, v)

    def exact(self, prompt: GroupRows, first: int, scale: float) -> F32:
        q, k, v = prompt
        return np.stack([near_sums(q[:, row], k[: row + 1], v[: row + 1], scale, None) for row in range(first, len(k))])


PLAIN = PlainKernels()


class OverlayGroup:
    """`rows` rows came so far: the first `sink` are kept, the newest in a ring, the others in the far field.

    `uses_far` [heads] says which heads read the far field. `exact_only`: too few rows for a far part; every row is
    kept and the result is the plain softmax. The ring has UNDO_ROWS slots more than are read: so many rows after a
    `mark` can be taken back.
    """

    __slots__ = (
        "_far", "_heads", "_kernels", "_marked", "_ring_k", "_ring_v", "_scratch", "_sink_k", "_sink_v",
        "exact_only", "head_dim", "record", "scale", "shape", "uses_far",
    )  # fmt: skip

    def __init__(
        self, shape: OverlayShape, prompt: GroupRows, scale: float, uses_far: B1, kernels: OverlayKernels = PLAIN,
        record: I64 | None = None,
    ) -> None:  # fmt: skip
        heads, rows, dim = prompt.q.shape
        self.shape, self.scale, self.head_dim, self._kernels = shape, scale, dim, kernels
        self.record = np.zeros(GROUP_FIELDS, np.int64) if record is None else record
        self.exact_only = rows < shape.seal_floor
        self.uses_far = np.zeros(heads, bool) if self.exact_only else uses_far.copy()
        sink = min(shape.sink, rows)
        self._sink_k, self._sink_v = to_tiles(prompt.k[:sink]), _wide(prompt.v[:sink])
        m = shape.landmarks_at(rows)
        has_far = bool(self.uses_far.any())
        self._far = FarField(int(self.uses_far.sum()), m, dim, scale, shape.rect) if has_far else None
        spare = (0 if has_far else m * dim) + int((~self.uses_far).sum()) * head_far_floats(m, dim)
        size = rows + 1 if self.exact_only else shape.window + spare // (2 * dim)
        slots = size + UNDO_ROWS
        self._ring_k = aligned_zeros((-(-slots // LANES), padded(dim), LANES), np.float32)
        self._ring_v = aligned_zeros((slots, padded(dim)), np.float32)
        kept = np.arange(max(rows - size, sink), rows)
        self._write(kept % slots, prompt.k[kept], prompt.v[kept])
        self.record[Group.ROWS], self.record[Group.RING] = rows, size
        self._heads = np.concatenate([np.flatnonzero(self.uses_far), np.flatnonzero(~self.uses_far)])
        self._describe()
        if has_far:
            kernels.fill(self, np.ascontiguousarray(prompt.q[self.uses_far]), prompt)
        self.mark()

    @property
    def far_field(self) -> FarField:
        assert self._far is not None, "no head of the group uses a far field"
        return self._far

    @property
    def rows(self) -> int:
        """Rows that came so far."""
        return int(self.record[Group.ROWS])

    @property
    def window(self) -> int:
        """The newest rows that heads without a far field read."""
        return int(self.record[Group.RING])

    @property
    def far_len(self) -> int:
        """Rows in the far field; with window and sinks they make all rows."""
        return 0 if self._far is None else self.rows - self.shape.window - self.shape.sink

    @property
    def memory_bytes(self) -> int:
        """Window, sinks, far field, and the scratch of one step: sink + window + 3 m values a head.

        What lets rows be taken back is not state and not counted.
        """
        dim, sink = self.head_dim, len(self._sink_v)
        floats = 2 * (sink + self.window) * dim + (0 if self._far is None else self._far.floats)
        return 4 * int(floats + len(self.uses_far) * (sink + self.window + 3 * self.shape.landmarks))

    def step(self, q: F32, k: F32, v: F32) -> F32:
        """Insert one row k, v [dim], then read it with q [heads, dim] → [heads, dim]."""
        self._insert(k, v)
        out = np.empty_like(q)
        if self._far is not None:
            out[self.uses_far] = near_sums(
                q[self.uses_far], *self._near(self.shape.window), self.scale, self._far.read(q[self.uses_far])
            )
        plain = ~self.uses_far
        if plain.any():
            out[plain] = near_sums(q[plain], *self._near(self.window), self.scale, None)
        return out

    def mark(self) -> None:
        """Rows that come from now on can be taken back, the first UNDO_ROWS of them."""
        self._marked = self.rows
        if self._far is not None:
            self._far.mark()

    def can_take_back(self, count: int) -> bool:
        return self.rows - self._marked <= UNDO_ROWS and self.rows - count >= self._marked

    def take_back(self, count: int) -> None:
        """Undo the newest `count` rows: what they pushed into the far field leaves it, bit for bit."""
        self.record[Group.ROWS] -= count
        if self._far is not None:
            self._far.take_back()
            self._kernels.replay(self, self._marked - self.shape.window, self.rows - self.shape.window)

    def ring_rows(self, rows: I64) -> tuple[F32, F32]:
        """K and V of rows that the ring still holds, [n, dim] each."""
        slots = rows % len(self._ring_v)
        return self._ring_k[slots // LANES, : self.head_dim, slots % LANES], self._ring_v[slots, : self.head_dim]

    def _insert(self, k: F32, v: F32) -> None:
        if self.exact_only and self.rows >= self.window:
            self._double()
        if self._far is not None:
            self._far.add(*self.ring_rows(np.array([self.rows - self.shape.window])))
        self._write(np.array([self.rows % len(self._ring_v)]), k[None], v[None])
        self.record[Group.ROWS] += 1

    def _double(self) -> None:
        """Twice the ring, while every row is kept: the slots stay what they are."""
        k, v = self.ring_rows(np.arange(self.rows))
        self.record[Group.RING] = 2 * self.window
        spare = np.zeros((self.window - self.rows + UNDO_ROWS, self.head_dim), np.float32)
        self._ring_k, self._ring_v = to_tiles(np.concatenate([k, spare])), _wide(np.concatenate([v, spare]))
        self._describe()

    def _write(self, slots: I64, k: F32, v: F32) -> None:
        self._ring_k[slots // LANES, : self.head_dim, slots % LANES] = k
        self._ring_v[slots, : self.head_dim] = v

    def _near(self, window: int) -> tuple[F32, F32]:
        """Sinks and the newest `window` rows, ascending."""
        sink = len(self._sink_v)
        k, v = self.ring_rows(np.arange(max(self.rows - window, sink), self.rows))
        sinks = from_tiles(self._sink_k, sink, self.head_dim), self._sink_v[:, : self.head_dim]
        return np.concatenate([sinks[0], k]), np.concatenate([sinks[1], v])

    def _describe(self) -> None:
        """Bring the record up to date with the arrays."""
        record, far, marks = self.record, self._far, 0 if self._far is None else self._far.inverse.shape[1]
        tiles = len(self._sink_k) + len(self._ring_k) + 1
        self._scratch = aligned_zeros(
            (_scratch_floats(len(self._heads), padded(self.head_dim), padded(marks), tiles),), "f4"
        )
        record[Group.SINK], record[Group.WINDOW] = len(self._sink_v), self.shape.window
        record[Group.SLOTS], record[Group.MARKS] = len(self._ring_v), marks
        record[Group.FAR_HEADS] = int(self.uses_far.sum())
        record[Group.KEEPS_SIGN] = int(self.shape.rect is Rect.AGGREGATE)
        record[Group.HEADS] = self._heads.ctypes.data
        record[Group.SCRATCH] = self._scratch.ctypes.data
        self._segment(GroupSegment.SINKS, self._sink_k, self._sink_v)
        self._segment(GroupSegment.RING, self._ring_k, self._ring_v)
        if far is not None:
            record[Group.LEVEL], record[Group.Z] = far.level.ctypes.data, far.z.ctypes.data
            record[Group.TOP] = far.top.ctypes.data
            self._segment(GroupSegment.MARKS, far.keys, None)
            self._segment(GroupSegment.FAR, far.queries, far.t[0])
            self._segment(GroupSegment.INVERSE, None, far.inverse)

    def _segment(self, which: GroupSegment, k: F32 | None, v: F32 | None) -> None:
        """Where a stream begins, and how far it is from one head to the next (0: the group has one for all)."""
        at = GROUP_HEAD_FIELDS + which * SEGMENT_FIELDS
        fields = self.record[at : at + SEGMENT_FIELDS]
        if k is not None:
            fields[Segment.K], fields[Segment.K_STRIDE] = k.ctypes.data, k.strides[0] if k.ndim == 4 else 0
        if v is not None:
            fields[Segment.V], fields[Segment.V_STRIDE] = v.ctypes.data, v.strides[0] if v.ndim == 3 else 0

    def copy(self, record: I64 | None = None) -> OverlayGroup:
        """A copy that shares nothing, described in `record`."""
        other = object.__new__(OverlayGroup)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, copied(value) if isinstance(value, np.ndarray) else value)
        if record is not None:
            record[:] = self.record
            other.record = record
        other._far = None if self._far is None else self._far.copy()
        other._describe()
        return other


def _wide(rows: F32) -> F32:
    """rows [n, dim] → [n, padded dim], zeros behind."""
    out = aligned_zeros((len(rows), padded(rows.shape[1])), np.float32)
    out[:, : rows.shape[1]] = rows
    return out


def _scratch_floats(heads: int, wide: int, marks: int, tiles: int) -> int:
    """A key; of each query head at once itself, its sums, maxima, scores of marks and of rows, weights of marks."""
    return wide + 5 * LANES + min(heads, _QUERIES_AT_ONCE) * (2 * wide + LANES + 2 * marks + tiles * LANES)


def overlay_wins(shape: OverlayShape, prompt: GroupRows, scale: float, kernels: OverlayKernels = PLAIN) -> B1:
    """Which query heads [heads] the overlay serves better than sinks and a window of equal bytes.

    Both are run over the newest HELD_OUT_ROWS rows of the prompt, sealed on those before, and compared with exact
    attention by their summed relative squared errors. A prompt too short for that shows nothing: no head wins.
    """
    heads, rows, _ = prompt.q.shape
    known = rows - HELD_OUT_ROWS
    if known < shape.seal_floor:
        return np.zeros(heads, bool)
    overlay = OverlayGroup(shape, prompt.upto(known), scale, np.ones(heads, bool), kernels)
    window = OverlayGroup(shape, prompt.upto(known), scale, np.zeros(heads, bool), kernels)
    errors = np.zeros((2, heads))
    for row, wanted in enumerate(kernels.exact(prompt, known, scale).astype(np.float64), known):
        q, k, v = np.ascontiguousarray(prompt.q[:, row]), prompt.k[row], prompt.v[row]
        norm = np.maximum(_squares(wanted), 1e-30)
        for error, group in zip(errors, (overlay, window), strict=True):
            error += _squares(kernels.step(group, q, k, v) - wanted) / norm
    wins: B1 = errors[0] < errors[1]
    return wins


def _squares(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Σ x² of each row, one addition after the other: the same bits on every machine."""
    return np.add.accumulate(rows * rows, axis=1)[:, -1]
