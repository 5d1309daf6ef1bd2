"""A sealed KV group: exact sinks and window, a far field for the query heads that gain by it, and the guard.

Memory does not grow: every head that does without the far field gives its bytes to the window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aeonflow.kv_options import HELD_OUT_ROWS

from .nystrom import FarField, OverlayShape, head_far_floats, landmark_means, near_sums
from .streams import F32

B1 = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


class GroupRows(NamedTuple):
    """A group's prompt: q f32 [heads, t, dim] rotated, k and v [t, dim]."""

    q: F32
    k: F32
    v: F32

    def upto(self, rows: int) -> GroupRows:
        return GroupRows(self.q[:, :rows], self.k[:rows], self.v[:rows])


class OverlayGroup:
    """`rows` rows came so far: the first `sink` are kept, the newest in a ring, the others in the far field.

    `uses_far` [heads] says which heads read the far field. `exact_only`: too few rows for a far part; every row is
    kept and the result is the plain softmax.
    """

    __slots__ = ("_far", "_k", "_scale", "_shape", "_sink_k", "_sink_v", "_v", "exact_only", "rows", "uses_far")

    def __init__(self, shape: OverlayShape, prompt: GroupRows, scale: float, uses_far: B1) -> None:
        heads, rows, dim = prompt.q.shape
        self._shape, self._scale, self.rows = shape, scale, rows
        self.exact_only = rows < shape.seal_floor
        self.uses_far = np.zeros(heads, bool) if self.exact_only else uses_far.copy()
        sink = min(shape.sink, rows)
        self._sink_k, self._sink_v = prompt.k[:sink].copy(), prompt.v[:sink].copy()
        m = shape.landmarks_at(rows)
        self._far: FarField | None = None
        if self.uses_far.any():
            landmarks = np.stack([landmark_means(q, m) for q in prompt.q[self.uses_far]])
            self._far = FarField(landmarks, landmark_means(prompt.k, m), scale, shape.rect)
            far = slice(shape.sink, rows - shape.window)
            self._far.add(prompt.k[far], prompt.v[far])
        spare = 0 if self._far is not None else m * dim
        spare += int((~self.uses_far).sum()) * head_far_floats(m, dim)
        size = rows + 1 if self.exact_only else shape.window + spare // (2 * dim)
        self._k, self._v = np.zeros((2, size, dim), np.float32)
        kept = np.arange(max(rows - size, sink), rows)
        self._k[kept % size], self._v[kept % size] = prompt.k[kept], prompt.v[kept]

    @property
    def window(self) -> int:
        """Rows the ring holds: the window of the heads without a far field."""
        return len(self._k)

    @property
    def far_len(self) -> int:
        """Rows in the far field; with window and sinks they make all rows."""
        return 0 if self._far is None else self._far.rows

    @property
    def memory_bytes(self) -> int:
        """Window, sinks, far field, and the scratch of one step: sink + window + 3 m values a head."""
        floats = self._sink_k.size + self._sink_v.size + self._k.size + self._v.size
        if self._far is not None:
            floats += self._far.floats
        scratch = len(self._sink_k) + self.window + 3 * self._shape.landmarks
        return 4 * int(floats + len(self.uses_far) * scratch)

    def step(self, q: F32, k: F32, v: F32) -> F32:
        """Insert one row k, v [dim], then read it with q [heads, dim] → [heads, dim]."""
        self._insert(k, v)
        out = np.empty_like(q)
        if self._far is not None:
            out[self.uses_far] = near_sums(
                q[self.uses_far], *self._near(self._shape.window), self._scale, self._far.read(q[self.uses_far])
            )
        plain = ~self.uses_far
        if plain.any():
            out[plain] = near_sums(q[plain], *self._near(self.window), self._scale, None)
        return out

    def _insert(self, k: F32, v: F32) -> None:
        if self.exact_only and self.rows >= self.window:
            self._k, self._v = (np.concatenate([x, np.zeros_like(x)]) for x in (self._k, self._v))
        if self._far is not None:
            leaving = (self.rows - self._shape.window) % self.window
            self._far.add(self._k[leaving][None], self._v[leaving][None])
        self._k[self.rows % self.window], self._v[self.rows % self.window] = k, v
        self.rows += 1

    def _near(self, window: int) -> tuple[F32, F32]:
        """Sinks and the newest `window` rows, ascending."""
        sink = len(self._sink_k)
        at = np.arange(max(self.rows - window, sink), self.rows) % self.window
        return np.concatenate([self._sink_k, self._k[at]]), np.concatenate([self._sink_v, self._v[at]])

    def snapshot(self) -> OverlayGroup:
        """A copy that shares nothing."""
        other = object.__new__(OverlayGroup)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, value.copy() if isinstance(value, np.ndarray | FarField) else value)
        return other


def overlay_wins(shape: OverlayShape, prompt: GroupRows, scale: float) -> B1:
    """Which query heads [heads] the overlay serves better than sinks and a window of equal bytes.

    Both are run over the newest HELD_OUT_ROWS rows of the prompt, sealed on those before, and compared with exact
    attention by their summed relative squared errors. A prompt too short for that shows nothing: no head wins.
    """
    heads, rows, _ = prompt.q.shape
    known = rows - HELD_OUT_ROWS
    if known < shape.seal_floor:
        return np.zeros(heads, bool)
    overlay = OverlayGroup(shape, prompt.upto(known), scale, np.ones(heads, bool))
    window = OverlayGroup(shape, prompt.upto(known), scale, np.zeros(heads, bool))
    errors = np.zeros((2, heads))
    for row in range(known, rows):
        q, k, v = prompt.q[:, row], prompt.k[row], prompt.v[row]
        exact = near_sums(q, prompt.k[: row + 1], prompt.v[: row + 1], scale, None).astype(np.float64)
        norm = np.maximum((exact * exact).sum(axis=1), 1e-30)
        for error, group in zip(errors, (overlay, window), strict=True):
            difference = group.step(q, k, v) - exact
            error += (difference * difference).sum(axis=1) / norm
    wins: B1 = errors[0] < errors[1]
    return wins
