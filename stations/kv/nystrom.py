"""O(1) attention for one KV group: sinks and a window exact, everything between through landmarks (Nyström).

For query head h with landmark queries q̃_b, landmark keys k̃_a and scale s:

    A_ba = exp(q̃_b·k̃_a s)    M = (AᵀA + λI)⁻¹Aᵀ    F_a = exp(q·k̃_a s)    u = F M
    Z_b = Σ_far exp(q̃_b·k_j s)    T_b = Σ_far exp(q̃_b·k_j s) v_j
    out = (Σ_near e_j v_j + u·T) / (Σ_near e_j + u·Z)

A row enters the far sums once, when it leaves the window. Sums are kept relative to running maxima, and A relative to
its largest entry, so nothing overflows. A head whose overlay loses against sinks and window of equal bytes does
without: its bytes become window rows, which it attends exactly. (The technique is described in another project's
patent application, US 19/738,763.)
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from aeonflow.kv_options import MIN_LANDMARKS, ROWS_A_LANDMARK, SEAL_SLACK

from .streams import F32

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
B1 = npt.NDArray[np.bool_]
RIDGE = 1e-6
RIDGE_STEPS = 12
DENOMINATOR_FLOOR = np.float32(1e-30)


class Rect(Enum):
    """What to do with a far part that is not a valid average: its weights u·Z may come out negative."""

    AGGREGATE = "aggregate"  # drop the far part of a row whose u·Z is below 0
    FM = "fm"  # u ← max(u, 0): outputs stay in the hull of the values


class OverlayShape(NamedTuple):
    """Landmarks m, window w and sinks, in rows."""

    landmarks: int
    window: int
    sink: int
    rect: Rect = Rect.AGGREGATE

    @property
    def seal_floor(self) -> int:
        """Rows from which on a layer may be sealed."""
        return self.window + self.sink + SEAL_SLACK

    def landmarks_at(self, rows: int) -> int:
        """Landmarks used for a prompt of `rows` rows."""
        return min(max(rows // ROWS_A_LANDMARK, MIN_LANDMARKS), self.landmarks)

    def overlay_floats(self, rows: int, head_dim: int, heads: int) -> int:
        """f32 values that the far part of a group takes, which a plain window would not."""
        m = self.landmarks_at(rows)
        return m * head_dim + heads * head_far_floats(m, head_dim)

    def window_of_equal_bytes(self, rows: int, head_dim: int, heads: int) -> int:
        """Rows of a plain window, beside the same sinks, that takes the bytes of the whole group."""
        return self.window + self.overlay_floats(rows, head_dim, heads) // (2 * head_dim)


def head_far_floats(m: int, head_dim: int) -> int:
    """Q̃ and T [m, head_dim], Z and maxima [m], M [m, m] of one query head."""
    return 2 * m * head_dim + 2 * m + m * m


def landmark_means(rows: F32, count: int) -> F32:
    """rows [t, dim] → [count, dim]: landmark i is the f64 mean of rows ⌊i·t/count⌋ up to ⌊(i+1)·t/count⌋."""
    edges = np.arange(count + 1) * len(rows) // count
    sums = np.add.reduceat(rows.astype(np.float64), edges[:-1], axis=0)
    return cast(F32, (sums / np.diff(edges)[:, None]).astype(np.float32))


def core_inverse(q: F32, k: F32, scale: float) -> tuple[F32, float]:
    """M [m, m] for A / e^level, and level, the largest exponent in A."""
    exponents = q.astype(np.float64) @ k.astype(np.float64).T * scale
    level = float(exponents.max())
    a = np.exp(exponents - level)
    gram = a.T @ a
    mean = float(np.trace(gram)) / len(gram)
    ridge = RIDGE * mean
    for _ in range(RIDGE_STEPS + 1):
        damped = gram + ridge * np.eye(len(gram))
        try:
            np.linalg.cholesky(damped)
        except np.linalg.LinAlgError:
            ridge *= 10
            continue
        return np.linalg.solve(damped, a.T).astype(np.float32), level
    return (a.T / mean).astype(np.float32), level


class FarField:
    """The far sums of some query heads of a group. q [heads, m, dim], k [m, dim] are the landmarks."""

    __slots__ = ("_inverse", "_k", "_level", "_q", "_rect", "_scale", "rows", "t", "top", "z")

    def __init__(self, q: F32, k: F32, scale: float, rect: Rect) -> None:
        self._q, self._k, self._scale, self._rect = q, k, np.float32(scale), rect
        cores = [core_inverse(head, k, scale) for head in q]
        self._inverse = np.stack([inverse for inverse, _ in cores])
        self._level = np.array([level for _, level in cores], np.float32)
        self.rows = 0
        self.t = np.zeros(q.shape, np.float32)
        self.z = np.zeros(q.shape[:2], np.float32)
        self.top = np.full(q.shape[:2], -np.inf, np.float32)

    @property
    def floats(self) -> int:
        """f32 values held."""
        m, dim = self._k.shape
        return int(m * dim + len(self._q) * head_far_floats(m, dim))

    def add(self, k: F32, v: F32) -> None:
        """Rows k, v [n, dim] join the sums."""
        if not len(k):
            return
        scores = _dots(self._q[:, :, None], k) * self._scale  # [heads, m, n]
        top = np.maximum(self.top, scores.max(axis=2))
        kept = np.exp(self.top - top)
        weights = np.exp(scores - top[:, :, None])
        self.z, self.t = self.z * kept, self.t * kept[:, :, None]
        for j, value in enumerate(v):
            self.z = self.z + weights[:, :, j]
            self.t = self.t + weights[:, :, j, None] * value
        self.top = top
        self.rows += len(k)

    def read(self, q: F32) -> tuple[F32, F32, F32]:
        """q [heads, dim] → numerators [heads, dim], denominators [heads], both over e^level, and the levels."""
        f = _dots(q[:, None], self._k) * self._scale
        largest = f.max(axis=1)
        f = np.exp(f - largest[:, None])
        u = np.add.accumulate(f[:, :, None] * self._inverse, axis=1, dtype=np.float32)[:, -1]
        if self._rect is Rect.FM:
            u = np.maximum(u, np.float32(0))
        highest = self.top.max(axis=1)
        u = u * np.exp(self.top - highest[:, None])
        mass = np.add.accumulate(u * self.z, axis=1, dtype=np.float32)[:, -1]
        total = np.add.accumulate(u[:, :, None] * self.t, axis=1, dtype=np.float32)[:, -1]
        if self._rect is Rect.AGGREGATE:
            is_valid = mass >= 0
            mass, total = np.where(is_valid, mass, 0), np.where(is_valid[:, None], total, 0)
        return total, mass.astype(np.float32), largest - self._level + highest

    def copy(self) -> FarField:
        other = object.__new__(FarField)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, value.copy() if isinstance(value, np.ndarray) else value)
        return other


def _dots(q: F32, keys: F32) -> F32:
    """q [..., n or 1, dim] · keys [n, dim] → [..., n], dims ascending."""
    return cast(F32, np.add.accumulate(q * keys, axis=-1, dtype=np.float32)[..., -1])


def near_sums(q: F32, k: F32, v: F32, scale: float, far: tuple[F32, F32, F32] | None) -> F32:
    """q [heads, dim] over exact rows k, v [n, dim], rows ascending, joined by a far part → [heads, dim]."""
    scores = _dots(q[:, None], k) * np.float32(scale)
    top = scores.max(axis=1)
    if far is not None:
        top = np.maximum(top, np.where(far[1] > 0, far[2], np.float32(-np.inf)))
    e = np.exp(scores - top[:, None])
    mass = np.add.accumulate(e, axis=1, dtype=np.float32)[:, -1]
    total = np.add.accumulate(e[:, :, None] * v, axis=1, dtype=np.float32)[:, -1]
    if far is not None:
        share = np.where(far[1] > 0, np.exp(np.minimum(far[2] - top, np.float32(0))), np.float32(0))
        mass, total = mass + far[1] * share, total + far[0] * share[:, None]
    return cast(F32, total / np.maximum(mass, DENOMINATOR_FLOOR)[:, None])
