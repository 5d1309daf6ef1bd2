"""Helper threads of a backend: asleep between calls, inside compiled code during one, never holding the GIL there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from . import fields as f

_POLL_S = 0.0002
_SETTLE_DEADLINE_S = 30.0


class Helpers:
    """`count` daemon threads that run `execute(work, call)` with OP_HELP whenever they are woken."""

    def __init__(self, count: int, pool: npt.NDArray[np.int64], work: int, execute: Callable[..., int]) -> None:
        self._pool = pool
        self._execute = execute
        self._work = work
        self._is_closed = False
        self._wake = [threading.Lock() for _ in range(count)]
        self._threads: list[threading.Thread] = []
        self._inside = [False] * count

    def begin(self) -> None:
        """Let the helpers join the call that is about to be made; the call itself lets them go at its end."""
        if not self._threads:
            self._start()
        self._pool[f.POOL_ACTIVE] = 1
        for lock in self._wake:
            if lock.locked():
                lock.release()

    def _start(self) -> None:
        for index, lock in enumerate(self._wake):
            lock.acquire()
            thread = threading.Thread(target=self._live, args=(index,), name=f"kernel-helper-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _live(self, index: int) -> None:
        call = np.zeros(f.CALL_FIELDS, np.int64)
        call[f.CALL_OP], call[f.CALL_ROWS] = f.OP_HELP, index
        address = call.ctypes.data
        while True:
            self._wake[index].acquire()
            if self._is_closed:
                return
            self._inside[index] = True
            self._execute(self._work, address)
            self._inside[index] = False

    @property
    def is_settled(self) -> bool:
        """No helper is left with a chunk of an earlier call that the caller took over."""
        slots = self._pool[f.POOL_SLOTS :: f.POOL_LINE]
        return not slots[: len(self._wake)].any()

    def settle(self) -> None:
        """Wait until no helper is inside compiled code, so that areas can be replaced. Only between calls."""
        deadline = time.monotonic() + _SETTLE_DEADLINE_S
        while any(self._inside) or not self.is_settled:
            if time.monotonic() > deadline:
                raise TimeoutError(f"a kernel helper thread has not returned within {_SETTLE_DEADLINE_S:g} s")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the threads. Only between calls."""
        self._is_closed = True
        for lock in self._wake:
            if lock.locked():
                lock.release()
        for thread in self._threads:
            thread.join(_SETTLE_DEADLINE_S)
