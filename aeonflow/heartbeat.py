"""The heartbeat of a link: one timer a connection that sends a beat and measures the peer's silence.

Silence counts only while this side was awake: when the timer itself fires late (the process was stopped, or computed in
the loop's thread), that time is not held against the peer, whose bytes may wait unread. Once a silence: a peer that
lives has sent something meanwhile, and the loop reads it before the timer comes again.
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
        self._forgiven = 0.0  # heard_at as it was set by a late timer; equal to it while nothing has arrived since

    @property
    def silence_s(self) -> float:
        return self._loop.time() - self.heard_at

    def start(self) -> None:
        self.heard_at = self._loop.time()
        self._beat_due = self.heard_at + self._options.heartbeat_s
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._due = min(self._beat_due, self.heard_at + self._options.silence_s)
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        options, now = self._options, self._loop.time()
        late_s = now - self._due
        if late_s > options.heartbeat_s / 2 and self.heard_at != self._forgiven:
            latest = now - options.silence_s + options.heartbeat_s  # one beat at least to read what waits
            self.heard_at = self._forgiven = min(now, max(self.heard_at + late_s, latest))
        elif now - self.heard_at >= options.silence_s - CLOCK_RESOLUTION_S:
            self._silent(now - self.heard_at)
            return
        if now >= self._beat_due:
            self._beat_due = now + options.heartbeat_s
            self._beat(self.source())
        self._schedule()
