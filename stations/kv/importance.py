"""Attention mass per stored row: how much probability has read each row, undecayed, and what the newest rows have read.

Kept only once there is any, so a cache whose importance nobody asks for pays nothing. What rows read that may still be
rejected is held apart, row by row, and joins in the order of their positions once they are accepted: always the same
additions, however the rows came and whenever they were settled. A rejected row leaves no trace.

Accepted rows join the *open* block. `end_block` closes it, at positions that a session's options fix: it becomes the
previous block and joins the sum of all. So a stored row costs three values, and the end of the last block can be
restored; what lies between it and the last row that has joined cannot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .memory import LANES, aligned_zeros

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

FEW_ROWS = 8  # of a pass: their scratch is kept for the next one, that of longer passes is given back
MIN_ROWS = 64


class _Held(NamedTuple):
    """What the rows at `position`, position + 1, … have read, f32 [rows, stored rows]: still in doubt."""

    position: int
    masses: F32


class Importance:
    """f32 a row; rows that were never read are 0. `capacity`: stored rows that are foreseen."""

    __slots__ = ("_all", "_block_end", "_capacity", "_held", "_joined_end", "_open", "_previous", "_spare")

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._all: F32 | None = None  # of the blocks that ended, and of masses that came without a position
        self._previous: F32 | None = None  # of the last block that ended
        self._open: F32 | None = None  # since then
        self._held: list[_Held] = []  # ascending
        self._spare: F32 | None = None  # scratch for the next pass of few rows
        self._block_end = self._joined_end = 0

    @property
    def block_end(self) -> int:
        """The position at which the last block ended: what rows from there on have read can be taken back together."""
        return self._block_end

    @property
    def joined_end(self) -> int:
        """The position behind the last row whose masses have joined."""
        return self._joined_end

    def stored_bytes(self, rows: int) -> int:
        """4 a row and sum once there is any, 4 a row for each one in doubt."""
        sums = (self._all, self._previous, self._open)
        in_doubt = sum(len(masses) for _, masses in self._held)
        return 4 * rows * (sum(values is not None for values in sums) + in_doubt)

    def of(self, rows: int) -> F32:
        """The mass of the first `rows` rows, f32 [rows]. A copy."""
        return _sum_of((self._all, self._open), rows)

    def latest(self, rows: int) -> F32:
        """What the rows of the open block and of the one before have read of the first `rows` rows, f32 [rows]."""
        return _sum_of((self._previous, self._open), rows)

    def add(self, mass: F32) -> None:
        """Row i gains mass[i]."""
        self._all = self._roomy(self._all, len(mass))
        self._all[: len(mass)] += mass

    def scratch(self, rows: int, keys: int) -> F32:
        """Zeros f32 [rows, ≥ keys] for the masses of a pass, which `hold` takes over."""
        spare, self._spare = self._spare, None
        if spare is None or len(spare) < rows or spare.shape[1] < keys:
            width = self._room_for(keys) if rows <= FEW_ROWS else keys
            return aligned_zeros((rows, -(-width // LANES) * LANES), np.float32)
        found = spare[:rows]
        found[:] = 0  # behind `keys` as well: more rows may be stored when these masses join
        return found

    def hold(self, position: int, masses: F32) -> None:
        """What the rows at `position`, position + 1, …, not accepted yet, have read: f32 [rows, stored rows] at least.
        The array is the layer's from now on."""
        self._held.append(_Held(position, masses))

    def settle(self, position: int, stored: int) -> None:
        """Rows below `position` are accepted: what they read of the first `stored` rows joins, in their order."""
        while self._held and self._held[0].position < position:
            first, masses = self._held[0]
            count, width = min(position - first, len(masses)), min(masses.shape[1], stored)
            self._open = total = self._roomy(self._open, width)
            joined = total[:width]
            for row in masses[:count]:
                np.add(joined, row[:width], out=joined)
            self._joined_end = first + count
            if count < len(masses):
                self._held[0] = _Held(first + count, masses[count:])
            else:
                del self._held[0]
                self._spare = masses if len(masses) <= FEW_ROWS else None

    def end_block(self, position: int) -> None:
        """The open block ends below `position`, everything before which has joined. A second time changes nothing."""
        if self._block_end == position:
            return
        self._block_end = self._joined_end = position
        if self._open is None:
            self._previous = None
            return
        self._all = self._roomy(self._all, len(self._open))
        self._all[: len(self._open)] += self._open
        self._previous, self._open = self._open, self._previous
        if self._open is not None:
            self._open[:] = 0

    def truncate(self, rows: int, position: int) -> None:
        """Rows from `rows` on start at 0 again; what rows from `position` on have read is forgotten: those in doubt, or
        all since `block_end`."""
        if position < self._joined_end:
            self._joined_end = self._block_end
            if self._open is not None:
                self._open[:] = 0
        for values in (self._all, self._previous, self._open):
            if values is not None:
                values[rows:] = 0
        self._held = [_Held(at, masses[: position - at]) for at, masses in self._held if at < position]

    def gather(self, kept: I64) -> None:
        """Row i becomes row kept[i]."""
        for values in (self._all, self._previous, self._open):
            if values is not None:
                inside = kept[kept < len(values)]
                values[: len(inside)] = values[inside]
                values[len(inside) :] = 0
        self._held = [_Held(at, masses[:, kept[kept < masses.shape[1]]]) for at, masses in self._held]

    def _room_for(self, rows: int) -> int:
        return max(self._capacity, MIN_ROWS) if rows <= self._capacity else max(2 * rows, MIN_ROWS)

    def _roomy(self, values: F32 | None, rows: int) -> F32:
        if values is not None and len(values) >= rows:
            return values
        grown = np.zeros(self._room_for(rows), np.float32)
        if values is not None:
            grown[: len(values)] = values
        return grown


def _sum_of(parts: tuple[F32 | None, F32 | None], rows: int) -> F32:
    out = np.zeros(rows, np.float32)
    for part in parts:
        if part is not None:
            known = min(rows, len(part))
            out[:known] += part[:known]
    return out
