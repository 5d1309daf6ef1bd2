"""Whether helper threads pay just now: measured, not assumed. Pure; the caller takes the times.

Where another program holds the other core, a woken helper costs the caller more than it gives. So calls of one kind
are timed both ways, the faster way is kept, and the other one is tried again now and then. Bits are the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

SAMPLES = 5  # recent calls of each way that are compared
PROBE_EVERY = 32  # calls between two tries of the slower way: a loss of 1/32 of the difference


def _recent() -> deque[float]:
    return deque(maxlen=SAMPLES)


@dataclass(slots=True)
class _Timings:
    """Seconds a row of recent calls."""

    helped: deque[float] = field(default_factory=_recent)
    alone: deque[float] = field(default_factory=_recent)
    calls: int = 0


class HelperChoice:
    """One memory for each kind of call; a kind is the operation and about how many rows."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int], _Timings] = {}

    def wants_helpers(self, operation: int, rows: int) -> bool:
        """The way to take for the call that comes next."""
        timings = self._kinds.setdefault((operation, rows.bit_length()), _Timings())
        timings.calls += 1
        if len(timings.helped) < SAMPLES:
            return True
        if len(timings.alone) < SAMPLES:
            return False
        is_better = median(timings.helped) <= median(timings.alone)
        return is_better != (timings.calls % PROBE_EVERY == 0)

    def took(self, operation: int, rows: int, seconds: float, *, helped: bool) -> None:
        """Tell how long the call took."""
        timings = self._kinds[operation, rows.bit_length()]
        (timings.helped if helped else timings.alone).append(seconds / rows)
