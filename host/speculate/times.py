"""What a pass costs by its rows, as the host measures it: from sending the rows to having their logits.

Seconds of R rows = row + (R − 1) · extra: a chain's hops and the reading of weights are in `row`, the arithmetic of one
more row in `extra`. Both follow what is measured, so a machine that is busy with others is soon known to be.
"""

from __future__ import annotations

WEIGHT_OF_NEW = 0.15
MIN_PLAIN = 3  # passes of one row that are measured before guesses are verified
MAX_WIDE = 64  # passes of several rows, then one of a single row
MAX_JUMP = 2.0  # a measurement counts as at most so many times what was expected: one stall says little


class PassTimes:
    """One for an engine: times are the machine's and the route's, not a text's. Starts from estimates in seconds."""

    def __init__(self, row_s: float, extra_s: float) -> None:
        self.row_s = row_s
        self.extra_s = extra_s
        self.num_plain = 0
        self.num_wide = 0
        self._num_wide_since = 0

    @property
    def wants_plain(self) -> bool:
        """Is it time to measure a pass of one row: at the start, and now and then when there were only wider ones?"""
        return self.num_plain < MIN_PLAIN or self._num_wide_since > MAX_WIDE

    def of(self, rows: int) -> float:
        """Seconds that a pass of `rows` rows takes."""
        return self.row_s + (rows - 1) * self.extra_s

    def learn(self, rows: int, seconds: float) -> None:
        """A pass took so long, alone on its way."""
        if rows == 1:
            self.num_plain += 1
            self._num_wide_since = 0
            self.row_s += self._step(self.num_plain) * (min(seconds, MAX_JUMP * self.row_s) - self.row_s)
            return
        self.num_wide += 1
        self._num_wide_since += 1
        extra = (min(seconds, MAX_JUMP * self.of(rows)) - self.row_s) / (rows - 1)
        step = self._step(self.num_wide) * min(1.0, (rows - 1) / 4)  # few rows more say little of what one costs
        self.extra_s += step * (max(extra, 0.0) - self.extra_s)

    @staticmethod
    def _step(count: int) -> float:
        """The first measurements replace the estimate quickly."""
        return max(WEIGHT_OF_NEW, 1.0 / (count + 1))
