"""Attention mass per stored row: how much probability has read each row, undecayed.

Kept only once there is any, so a cache whose importance nobody asks for pays nothing. The mass that rows give which
may still be rejected is held apart, row by row, and joins when they are accepted: a rejected row leaves no trace, and
an accepted one adds the same bits as if it had never been in doubt.

What was read last is kept as well: the mass that joined at the two newest settlements.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


_NONE: F32 = np.zeros(0, np.float32)


class Importance:
    """f32 a row; rows that were never read are 0."""

    __slots__ = ("_held", "_joined", "_mass")

    def __init__(self) -> None:
        self._mass: F32 | None = None
        self._joined: tuple[F32, F32] = (_NONE, _NONE)  # at the settlement before the last one, and at the last
        self._held: list[tuple[int, F32]] = []  # position of the reading row, mass by stored row; ascending

    def stored_bytes(self, rows: int) -> int:
        """4 a row once there is any, what joined last, and the mass held apart."""
        apart = sum(mass.nbytes for mass in self._joined) + sum(mass.nbytes for _, mass in self._held)
        return (0 if self._mass is None else 4 * rows) + apart

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
        joined = [mass for at, mass in self._held if at < position]
        if not joined:
            return
        self._held = self._held[len(joined) :]
        total = np.zeros(max(len(mass) for mass in joined), np.float32)
        for mass in joined:
            self.add(mass)
            total[: len(mass)] += mass
        self._joined = self._joined[1], total

    def latest(self, rows: int) -> F32:
        """What the rows of the two newest settlements have read of the first `rows` rows, f32 [rows]."""
        out = np.zeros(rows, np.float32)
        for mass in self._joined:
            known = min(rows, len(mass))
            out[:known] += mass[:known]
        return out

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
        before, last = (mass[kept[kept < len(mass)]] for mass in self._joined)
        self._joined = before, last
        self._held = [(at, mass[kept[kept < len(mass)]]) for at, mass in self._held]
