"""Which core the event loop's thread runs on while one session alone is decoded: one core for the session's stations.

A pass is at one station at a time. Where stations share a machine, handing it on within a core costs a switch, and
across cores a wake-up of a sleeping core, several times as much; the interpreter's code stays in that core's caches.
So a thread that serves rows of one session, from a neighbour on this machine, keeps to the core that the session's
number names, the same for all its stations. The compute thread and everything else keep all cores, and so does this
thread as soon as there is anything else to do. Where others want the core and another is idle, it is left to them for
a while.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

MAX_WAIT_PER_RUN = 1.5  # time spent waiting for the core, over time on it: above, others want it
IDLE_SHARE = 0.5  # of its time: a core that can take somebody
FIRST_BACKOFF_S, LAST_BACKOFF_S = 8.0, 64.0
_IDLE_FIELDS = slice(3, 5)  # of a core's line in /proc/stat: idle, and waiting for input


class Load(NamedTuple):
    """Since some time in the past: nanoseconds this thread has run and waited for a core; of each core, ticks in which
    it was idle and ticks in all."""

    run_ns: int
    wait_ns: int
    cores: Mapping[int, tuple[int, int]]


SetCores = Callable[[Set[int]], None]
ReadLoad = Callable[[], Load | None]


def read_load() -> Load | None:
    """Of the calling thread; None where the system does not tell."""
    try:
        run_ns, wait_ns, _ = Path("/proc/thread-self/schedstat").read_text().split()
        cores = {}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name.startswith("cpu") and name != "cpu":
                numbers = [int(tick) for tick in ticks]
                cores[int(name.removeprefix("cpu"))] = sum(numbers[_IDLE_FIELDS]), sum(numbers)
    except (OSError, ValueError):
        return None
    return Load(int(run_ns), int(wait_ns), cores)


def set_cores(cores: Set[int]) -> None:
    """The cores that the calling thread may run on."""
    os.sched_setaffinity(0, cores)


def usable_cores() -> frozenset[int]:
    """Those of the calling thread now; empty where a thread cannot choose."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def core_of(session: int, cores: Set[int]) -> int:
    """One of `cores` for a session, the same wherever it is asked; sessions are spread evenly."""
    number = session.to_bytes(8, "little")
    return min(cores, key=lambda core: blake3(number + core.to_bytes(4, "little")).digest())


class Placement:
    """Of the calling thread, within `usable` cores; a no-op with fewer than two."""

    def __init__(
        self, usable: Set[int], set_cores: SetCores = set_cores, read_load: ReadLoad = read_load
    ) -> None:  # fmt: skip
        self.core: int | None = None  # the one kept to
        self._usable = usable
        self._set_cores = set_cores
        self._read_load = read_load
        self._before: Load | None = None
        self._backoff_s = FIRST_BACKOFF_S
        self._not_before_s = 0.0

    def serve(self, session: int, now: float) -> None:
        """Rows of this session alone come, from a neighbour on this machine."""
        if self.core is None and len(self._usable) > 1 and now >= self._not_before_s:
            self._before = None
            core = core_of(session, self._usable)
            self._move({core}, core)

    def release(self) -> None:
        """There is something else to do: back to all cores."""
        if self.core is not None:
            self._move(self._usable, None)

    def tick(self, now: float) -> None:
        """Now and then: leave the core where this thread has mostly waited for it and another was idle."""
        if self.core is None:
            return
        before, self._before = self._before, self._read_load()
        if before is None or self._before is None:
            return
        if _is_wanted(before, self._before) and self._another_is_idle(before, self._before):
            self._not_before_s = now + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)
            self.release()
        else:
            self._backoff_s = FIRST_BACKOFF_S

    def _another_is_idle(self, before: Load, now: Load) -> bool:
        for core in self._usable - {self.core}:
            if core in before.cores and core in now.cores:
                idle, ticks = (b - a for a, b in zip(before.cores[core], now.cores[core], strict=True))
                if ticks and idle / ticks > IDLE_SHARE:
                    return True
        return False

    def _move(self, cores: Set[int], core: int | None) -> None:
        try:
            self._set_cores(cores)
            self.core = core
        except OSError:  # the system has taken cores away
            self._usable = frozenset()
            self.core = None


def _is_wanted(before: Load, now: Load) -> bool:
    return now.wait_ns - before.wait_ns > MAX_WAIT_PER_RUN * (now.run_ns - before.run_ns)
