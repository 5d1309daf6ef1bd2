"""What a batch will cost, from what batches like it have cost: decides between inline and the compute thread. Pure."""

from __future__ import annotations

# Handing over to the compute thread and back costs about 40 µs, 3.6 ms a token over 90 hops; a batch run inline keeps
# the loop from reading frames and pings, so it must be short.
INLINE_LIMIT_S = 0.5e-3

_WEIGHT = 0.2  # of a new sample in the moving average
_MAX_JUMP = 4.0  # a sample counts at most this many times the average: one preemption must not banish a role


class Estimate:
    """Seconds of one kind and size of batch: a guess until the first sample, then a moving average."""

    __slots__ = ("is_guess", "seconds")

    def __init__(self, guess_s: float) -> None:
        self.seconds = guess_s
        self.is_guess = True

    def learn(self, seconds: float, samples: int = 1) -> None:
        """A batch like this took `seconds`; of several in a row, their mean."""
        known = self.seconds
        if self.is_guess:
            self.seconds, self.is_guess = seconds, False
        else:
            weight = _WEIGHT if samples == 1 else 1.0 - (1.0 - _WEIGHT) ** samples
            self.seconds = known + weight * ((seconds if seconds < _MAX_JUMP * known else _MAX_JUMP * known) - known)


class CostModel:
    """Estimates by what is computed and by rows up to the next power of two."""

    def __init__(self) -> None:
        self._estimates: dict[tuple[object, int], Estimate] = {}

    def estimate(self, what: object, rows: int) -> Estimate:
        """For `rows` rows of `what`; infinite when nothing like it has run, else scaled from fewer rows."""
        size = rows.bit_length()
        found = self._estimates.get((what, size))
        if found is not None and not found.is_guess:
            return found
        return self._guess(what, size)

    def _guess(self, what: object, size: int) -> Estimate:
        guess_s = float("inf")
        for smaller in range(size - 1, 0, -1):
            known = self._estimates.get((what, smaller))
            if known is not None and not known.is_guess:
                guess_s = known.seconds * 2.0 ** (size - smaller)
                break
        found = self._estimates[what, size] = Estimate(guess_s)
        return found
