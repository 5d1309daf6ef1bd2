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

from .memory import LANES, aligned_zeros, copied, from_tiles, padded, to_tiles
from .streams import F32

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
B1 = npt.NDArray[np.bool_]
RIDGE = 1e-6
RIDGE_STEPS = 12
ROWS_AT_ONCE = 64  # joining the far sums, in the plain version: bounds its temporaries
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
    """The far sums of some query heads of a group: landmarks, M, T and Z, as compiled code reads them (`table.py`).

    T, Z and the maxima they are relative to are kept twice: as they are, and as they were at the last `mark`.
    """

    __slots__ = ("_dim", "_m", "_rect", "_scale", "inverse", "keys", "level", "queries", "t", "top", "z")

    def __init__(self, heads: int, m: int, dim: int, scale: float, rect: Rect) -> None:
        self._m, self._dim = m, dim
        self._scale, self._rect = np.float32(scale), rect
        wide, marks = padded(dim), padded(m)
        self.keys = aligned_zeros((marks // LANES, wide, LANES), np.float32)
        self.queries = aligned_zeros((heads, marks // LANES, wide, LANES), np.float32)
        self.inverse = aligned_zeros((heads, m, marks), np.float32)
        self.level = np.zeros(heads, np.float32)
        self.t = aligned_zeros((2, heads, m, wide), np.float32)
        self.z, self.top = (aligned_zeros((2, heads, marks), np.float32) for _ in range(2))
        self.top[:] = -np.inf

    def set_landmarks(self, q: F32, k: F32) -> None:
        """Of a prompt q [heads, t, dim], k [t, dim]; and M with its level."""
        keys = landmark_means(k, self._m)
        self.keys[:] = to_tiles(keys)
        for head, rows in enumerate(q):
            queries = landmark_means(rows, self._m)
            self.queries[head] = to_tiles(queries)
            self.inverse[head, :, : self._m], self.level[head] = core_inverse(queries, keys, float(self._scale))

    @property
    def floats(self) -> int:
        """f32 values held, each of T, Z and the maxima once, padding not counted."""
        return int(self._m * self._dim + len(self.level) * head_far_floats(self._m, self._dim))

    def mark(self) -> None:
        """What `take_back` goes back to."""
        for sums in (self.t, self.z, self.top):
            sums[1] = sums[0]

    def take_back(self) -> None:
        """The sums as they were at the mark."""
        for sums in (self.t, self.z, self.top):
            sums[0] = sums[1]

    def _queries(self) -> F32:
        return from_tiles(self.queries, self._m, self._dim)

    def _keys(self) -> F32:
        return from_tiles(self.keys, self._m, self._dim)

    def _sums(self) -> tuple[F32, F32, F32]:
        """T [heads, m, dim], Z [heads, m] and the maxima."""
        m = self._m
        return self.t[0, :, :, : self._dim], self.z[0, :, :m], self.top[0, :, :m]

    def add(self, k: F32, v: F32) -> None:
        """Rows k, v [n, dim] join the sums."""
        queries = self._queries()
        t, z, top = self._sums()
        for lo in range(0, len(k), ROWS_AT_ONCE):
            block = slice(lo, lo + ROWS_AT_ONCE)
            scores = _dots(queries[:, :, None], k[block]) * self._scale  # [heads, m, n]
            highest = np.maximum(top, scores.max(axis=2))
            kept, weights = np.exp(top - highest), np.exp(scores - highest[:, :, None])
            z *= kept
            t *= kept[:, :, None]
            top[:] = highest
            for j, value in enumerate(v[block]):
                z += weights[:, :, j]
                t += weights[:, :, j, None] * value

    def read(self, q: F32) -> tuple[F32, F32, F32]:
        """q [heads, dim] → numerators [heads, dim], denominators [heads], both over e^level, and the levels."""
        t, z, top = self._sums()
        f = _dots(q[:, None], self._keys()) * self._scale
        largest = f.max(axis=1)
        f = np.exp(f - largest[:, None])
        u = np.add.accumulate(f[:, :, None] * self.inverse[:, :, : self._m], axis=1, dtype=np.float32)[:, -1]
        if self._rect is Rect.FM:
            u = np.maximum(u, np.float32(0))
        highest = top.max(axis=1)
        u = u * np.exp(top - highest[:, None])
        mass = np.add.accumulate(u * z, axis=1, dtype=np.float32)[:, -1]
        total = np.add.accumulate(u[:, :, None] * t, axis=1, dtype=np.float32)[:, -1]
        if self._rect is Rect.AGGREGATE:
            is_valid = mass >= 0
            mass, total = np.where(is_valid, mass, 0), np.where(is_valid[:, None], total, 0)
        return total, mass.astype(np.float32), largest - self.level + highest

    def copy(self) -> FarField:
        other = object.__new__(FarField)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, copied(value) if isinstance(value, np.ndarray) else value)
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
