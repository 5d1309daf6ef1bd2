"""Link delay for benches and tests: every message waits a fixed time between being sent and reaching the transport.

The due time is stamped on the monotonic clock when a message is handed over. One timing thread per process keeps all of
them, because loop timers cannot (a sleep of 0.2 ms took 1.1 ms on asyncio and none on uvloop). Order is kept. The
delays obtained are measured and counted; they, not the delay asked for, are what results are compared with.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable

from ..errors import AeonflowError
from ..frames import Buffer
from .base import HIGH_WATER_BYTES, Receiver, Wire


class TimingThread:
    """Wakes event loops at given times of `time.monotonic()`. The thread lives while someone holds it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._num_holders = 0
        self._num_scheduled = 0
        self._thread: threading.Thread | None = None

    def hold(self) -> None:
        """Start the thread unless it runs; `drop` undoes it."""
        with self._changed:
            self._num_holders += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="aeonflow-link-delay", daemon=True)
                self._thread.start()

    def drop(self) -> None:
        with self._changed:
            self._num_holders -= 1
            self._changed.notify()

    def call_at(self, due: float, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Run `callback` in `loop` at `due`. May be called from any thread."""
        with self._changed:
            self._num_scheduled += 1
            heapq.heappush(self._due, (due, self._num_scheduled, loop, callback))
            if self._due[0][1] == self._num_scheduled:
                self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while self._num_holders:
                left_s = self._due[0][0] - time.monotonic() if self._due else None
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                    continue
                _, _, loop, callback = heapq.heappop(self._due)
                try:
                    loop.call_soon_threadsafe(callback)
                except RuntimeError:  # that loop is closed, and so are its connections
                    continue
            self._due.clear()
            self._thread = None


class _Watch:
    """The receiver of the inner wire: passes everything on, and tells the delay when the connection is gone."""

    def __init__(self, receiver: Receiver, on_gone: Callable[[], None]) -> None:
        self.on_data = receiver.on_data
        self.on_fault = receiver.on_fault
        self.on_congested = receiver.on_congested
        self.on_writable = receiver.on_writable
        self._receiver = receiver
        self._on_gone = on_gone

    def on_lost(self, error: AeonflowError | None) -> None:
        self._on_gone()
        self._receiver.on_lost(error)


_timing = TimingThread()


class _Held:
    """A message, or the close when `message` is None, with the times it was handed over and is due."""

    __slots__ = ("close", "due", "handed_over", "message")

    def __init__(self, message: Buffer | None, close: tuple[int, str], handed_over: float, due: float) -> None:
        self.message = message
        self.close = close
        self.handed_over = handed_over
        self.due = due


class DelayedWire(Wire):
    """`inner` with `delay_s` in front of everything sent on it."""

    keeps_messages = True

    def __init__(self, inner: Wire, delay_s: float, timing: TimingThread = _timing) -> None:
        self.name = inner.name
        self.peer_url = inner.peer_url
        self._inner = inner
        self._delay_s = delay_s
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._high_water_bytes = HIGH_WATER_BYTES
        self._num_delayed = 0
        self._obtained_s = 0.0
        self._is_closing = False
        self._is_lost = False
        timing.hold()

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._inner.start(_Watch(receiver, self._on_lost))

    def send(self, message: Buffer) -> None:
        if not self._is_closing:
            self._hold(_Held(message, (0, ""), *self._times()))
            self._held_bytes += len(message)
            self._note_congestion()

    @property
    def waiting_bytes(self) -> int:
        return self._held_bytes + self._inner.waiting_bytes

    def set_high_water(self, size_bytes: int) -> None:
        self._high_water_bytes = size_bytes
        self._inner.set_high_water(size_bytes)

    def delays(self) -> tuple[int, float]:
        return self._num_delayed, self._obtained_s

    def close(self, code: int, reason: str) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._hold(_Held(None, (code, reason), *self._times()))

    def abort(self) -> None:
        self._is_closing = True
        self._held.clear()
        self._held_bytes = 0
        self._inner.abort()

    def _times(self) -> tuple[float, float]:
        now = time.monotonic()
        return now, now + self._delay_s

    def _hold(self, held: _Held) -> None:
        if not self._is_lost:
            self._held.append(held)
            self._timing.call_at(held.due, self._loop, self._release)

    def _release(self) -> None:
        was_congested = self.is_congested
        while self._held and self._held[0].due <= time.monotonic():
            held = self._held.popleft()
            if held.message is None:
                self._inner.close(*held.close)
                continue
            self._num_delayed += 1
            self._obtained_s += time.monotonic() - held.handed_over
            self._held_bytes -= len(held.message)
            self._inner.send(held.message)
        self._note_congestion()
        if was_congested and not self.is_congested and self._receiver is not None:
            self._receiver.on_writable()

    def _note_congestion(self) -> None:
        self.is_congested = self._held_bytes > self._high_water_bytes or self._inner.is_congested

    def _on_lost(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._held.clear()
            self._held_bytes = 0
            self._timing.drop()
