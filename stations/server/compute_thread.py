"""The one compute thread of a station. One piece of work at a time; the result comes back as a loop callback."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

from .placement import set_cores, usable_cores

JOIN_S = 2.0  # for a batch that still runs when the station leaves

Work = Callable[[], None]


class ComputeThread:
    """Started with the first work. A daemon thread: a kernel that hangs must not keep the process alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._cores = usable_cores()
        self._work: queue.SimpleQueue[tuple[Work, Work] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Work, done: Work) -> None:
        """Run `work` in the thread, then `done` in the loop. `work` must not raise."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"compute {self._name}", daemon=True)
            self._thread.start()
        self._work.put((work, done))

    def stop(self) -> None:
        """End the thread after the work it has; waits for that a bounded time."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(JOIN_S)
            self._thread = None

    def _run(self) -> None:
        if self._cores:
            set_cores(self._cores)  # whatever the thread that started this one keeps to
        while (item := self._work.get()) is not None:
            work, done = item
            work()
            try:
                self._loop.call_soon_threadsafe(done)
            except RuntimeError:  # the loop was closed meanwhile: nobody waits for the result
                return
