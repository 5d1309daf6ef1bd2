"""Whether canonical seeds may be used: a fault closes their lines, and after a while the next request tries again.

The plain chain does the work meanwhile. A line that fails again soon stays closed for longer, so that requests are not
held up by the same fault one after another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

REOPEN_FIRST_S = 30.0
REOPEN_CAP_S = 600.0  # also how long lines must have been open for their next fault to count as a first one


class SeedLines:
    """The lines of one engine. `fault` is why they were closed the last time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.are_open = True
        self.fault = ""
        self.closings = 0
        self._clock = clock
        self._opened_s = 0.0
        self._closed_for_s = 0.0  # the last time
        self._reopens_s = 0.0

    def close(self, fault: str) -> None:
        """Leave the lines alone for a while. What fails while they are closed was under way before, and says nothing
        new."""
        if not self.are_open:
            return
        now = self._clock()
        is_again = self.closings > 0 and now - self._opened_s < REOPEN_CAP_S
        self._closed_for_s = min(2 * self._closed_for_s, REOPEN_CAP_S) if is_again else REOPEN_FIRST_S
        self._reopens_s = now + self._closed_for_s
        self.are_open, self.fault = False, fault
        self.closings += 1
        logger.warning("the lines of residual seeds are closed for %g s: %s", self._closed_for_s, fault)

    def try_again(self) -> None:
        """A request begins: open the lines if they were closed for long enough."""
        if not self.are_open and self._clock() >= self._reopens_s:
            self.reopen()

    def reopen(self) -> None:
        """The lines may be used."""
        if not self.are_open:
            self.are_open = True
            self._opened_s = self._clock()

    def to_json(self) -> dict[str, Any]:
        """As `status` shows them: why they are closed, how often they were, seconds until they are tried again."""
        if self.are_open:
            return {"degraded": "", "closings": self.closings, "reopens_s": 0.0}
        left_s = max(0.0, self._reopens_s - self._clock())
        return {"degraded": self.fault, "closings": self.closings, "reopens_s": left_s}
