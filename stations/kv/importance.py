"""Attention mass per stored row: how much probability has read each row, undecayed.

Kept only once there is any, so a cache whose importance nobody asks for pays nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class Importance:
    """f32 a row; rows that were never read are 0."""

    __slots__ = ("_mass",)

    def __init__(self) -> None:
        self._mass: F32 | None = None

    def stored_bytes(self, rows: int) -> int:
        return 0 if self._mass is None else 4 * rows

    def of(self, rows: int) -> F32:
        """The mass of the first `rows` rows, f32 [rows]. A copy."""
        out = np.zeros(rows, np.float32)
        if self._mass is not None:
            known = min(rows, len(self._mass))
            out[:known] = self._mass[:known]
        return out

    def add(self, mass: F32) -> None:
        """Row i gains mass[i]."""
        if self._mass is None or len(self._mass) < len(mass):
            grown = np.zeros(max(2 * len(mass), 64), np.float32)
            if self._mass is not None:
                grown[: len(self._mass)] = self._mass
            self._mass = grown
        self._mass[: len(mass)] += mass

    def truncate(self, rows: int) -> None:
        """Rows from `rows` on start at 0 again."""
        if self._mass is not None:
            self._mass[rows:] = 0

    def gather(self, kept: I64) -> None:
        """Row i becomes row kept[i]."""
        if self._mass is not None:
            padded = self.of(int(kept.max()) + 1 if len(kept) else 0)
            self._mass[: len(kept)] = padded[kept]
            self._mass[len(kept) :] = 0
