"""The heartbeat of a link: one timer a connection that sends a beat and measures the peer's silence.

Silence counts only while this side was awake. When the timer itself fires late (the process was stopped, computed in
the loop's thread, or got no core on a busy machine), what was not heard meanwhile says nothing of the peer, which may
have been starved by the same cause: that time is taken off, every time. A peer that is dead is given up all the same,
since between two beats a silence grows by what lies between them when nothing is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .link_options import LinkOptions
from .messages import Heartbeat

CLOCK_RESOLUTION_S = 0.001  # of the event loops' clocks; timers may fire this much early


class Heart:
    """`beat` sends a heartbeat, `silent` is told the silence in seconds once it is too long."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: LinkOptions,
        beat: Callable[[Heartbeat], None],
        silent: Callable[[float], None],
    ) -> None:
        self.source: Callable[[], Heartbeat] = Heartbeat
        self.remote = Heartbeat()
        self._loop = loop
        self._options = options
        self._beat = beat
        self._silent = silent
        self._timer: asyncio.TimerHandle | None = None
        self.heard_at = loop.time()  # the link sets it whenever something arrives
        self._beat_due = 0.0
        self._due = 0.0

    @property
    def silence_s(self) -> float:
        return self._loop.time() - self.heard_at

    def start(self) -> None:
        self.heard_at = self._loop.time()
        self._beat_due = self.heard_at + self._options.heartbeat_s
        self._schedule(self.heard_at)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, now: float) -> None:
        end = self.heard_at + self._options.silence_s
        self._due = min(self._beat_due, end) if end > now + CLOCK_RESOLUTION_S else self._beat_due
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        options, now = self._options, self._loop.time()
        patience_s, late_s = options.silence_s, now - self._due
        if late_s > options.heartbeat_s / 2:
            self.heard_at = min(now, self.heard_at + late_s)
            patience_s += options.heartbeat_s  # what has arrived waits unread: the loop reads it before the next tick
        if now - self.heard_at >= patience_s - CLOCK_RESOLUTION_S:
            self._silent(now - self.heard_at)
            return
        if now >= self._beat_due:
            self._beat_due = now + options.heartbeat_s
            self._beat(self.source())
        if self._timer is not None:  # a beat that finds too much waiting ends the link, and this heart with it
            self._schedule(now)
