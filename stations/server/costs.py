"""What a batch will cost, from what batches like it have cost: decides between inline and the compute thread. Pure."""

from __future__ import annotations

# Handing over to the compute thread and back costs about 40 µs, 3.6 ms a token over 90 hops; a batch run inline keeps
# the loop from reading frames and pings, so it must be short.
INLINE_LIMIT_S = 0.5e-3

_WEIGHT = 0.2  # of a new sample in the moving average
_MAX_JUMP = 4.0  # a sample counts at most this many times the average: one preemption must not banish a role


class CostModel:
    """Moving averages of seconds by (what, rows up to a power of two). Unknown sizes are scaled from smaller ones."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, int], float] = {}

    def predict(self, what: object, rows: int) -> float:
        """Seconds that `rows` rows of `what` should take; infinity when nothing like it has run."""
        size = rows.bit_length()
        known = self._seconds.get((what, size))
        if known is not None:
            return known
        for smaller in range(size - 1, 0, -1):
            known = self._seconds.get((what, smaller))
            if known is not None:
                return known * 2.0 ** (size - smaller)
        return float("inf")

    def learn(self, what: object, rows: int, seconds: float) -> None:
        """A batch took `seconds`."""
        key = (what, rows.bit_length())
        known = self._seconds.get(key)
        if known is None:
            self._seconds[key] = seconds
        else:
            self._seconds[key] = known + _WEIGHT * (min(seconds, _MAX_JUMP * known) - known)
