"""State barriers: the positions at which a cache changes its form.

A cache changes form only at positions that its options fix, on rows of accepted positions, before the row at the
barrier is appended. Passes whose rows may be rejected end at a barrier; prefill chunks are split at it. A host asks
every KV holder for its barriers and cuts passes at the union.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Barriers(NamedTuple):
    """Positions first, first + period, first + 2 · period, … (period 0: only the first)."""

    first: int
    period: int = 0

    def after(self, position: int) -> int | None:
        """The first barrier beyond `position`, or None."""
        if position < self.first:
            return self.first
        if not self.period:
            return None
        return self.first + ((position - self.first) // self.period + 1) * self.period


def next_barrier(union: Iterable[Barriers], position: int) -> int | None:
    """The first barrier of any kind beyond `position`: a pass that starts at `position` may not reach past it."""
    return min((at for b in union if (at := b.after(position)) is not None), default=None)
