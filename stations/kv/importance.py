"""Attention mass per stored row: how much probability has read each row, undecayed.

Kept only once there is any, so a cache whose importance nobody asks for pays nothing. The mass that rows give which
may still be rejected is held apart, row by row, and joins when they are accepted: a rejected row leaves no trace, and
an accepted one adds the same bits as if it had never been in doubt.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class Importance:
    """f32 a row; rows that were never read are 0."""

    __slots__ = ("_held", "_mass")

    def __init__(self) -> None:
        self._mass: F32 | None = None
        self._held: list[tuple[int, F32]] = []  # position of the reading row, mass by stored row; ascending

    def stored_bytes(self, rows: int) -> int:
        """4 a row once there is any, and the mass held apart."""
        return (0 if self._mass is None else 4 * rows) + sum(mass.nbytes for _, mass in self._held)

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

    def hold(self, position: int, mass: F32) -> None:
        """What the row at `position`, not accepted yet, has read."""
        self._held.append((position, mass.copy()))

    def settle(self, position: int) -> None:
        """Rows below `position` are accepted: what they read joins, in their order."""
        while self._held and self._held[0][0] < position:
            self.add(self._held.pop(0)[1])

    def truncate(self, rows: int, position: int) -> None:
        """Rows from `rows` on start at 0 again; what rows from `position` on have read is forgotten."""
        if self._mass is not None:
            self._mass[rows:] = 0
        self._held = [(at, mass) for at, mass in self._held if at < position]

    def gather(self, kept: I64) -> None:
        """Row i becomes row kept[i]."""
        if self._mass is not None:
            before = self.of(int(kept[-1]) + 1 if len(kept) else 0)
            self._mass[: len(kept)] = before[kept]
            self._mass[len(kept) :] = 0
        self._held = [(at, mass[kept[kept < len(mass)]]) for at, mass in self._held]
