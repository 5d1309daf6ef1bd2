"""Helper threads of a backend: they live in compiled code (`pool.help_out`) and never hold the GIL there."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

import numpy as np

from ...errors import KernelError
from . import fields as f
from .workspace import Workspace

Execute = Callable[[int, int], int]

_POLL_S = 0.0002
_SETTLE_DEADLINE_S = 30.0


class Helpers:
    """`count` daemon threads, started at the first call that wants them, asleep between calls."""

    def __init__(self, count: int, workspace: Workspace, execute: Execute) -> None:
        self._count = count
        self._workspace = workspace
        self._execute = execute
        self._threads: list[threading.Thread] = []
        self._end: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Have the threads; a no-op when they are there."""
        if self._threads or not self._count:
            return
        _operate(self._execute, self._workspace, f.OP_START)
        self._threads = [
            threading.Thread(
                target=_operate, args=(self._execute, self._workspace, f.OP_HELP, index), name=f"kernel-helper-{index}",
                daemon=True,
            )
            for index in range(self._count)
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, _end, self._execute, self._workspace, self._threads)

    @property
    def is_settled(self) -> bool:
        """No helper is left with a chunk of an earlier call that the caller took over."""
        return not self._workspace.pool[f.POOL_SLOTS :: f.POOL_LINE][: self._count].any()

    def settle(self) -> None:
        """Wait until that is so, and areas can be replaced. Only between calls."""
        deadline = time.monotonic() + _SETTLE_DEADLINE_S
        while not self.is_settled:
            if time.monotonic() > deadline:
                raise KernelError(f"a kernel helper thread has not returned within {_SETTLE_DEADLINE_S:g} s")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the threads. Only between calls."""
        self._end()


def _operate(execute: Execute, workspace: Workspace, operation: int, argument: int = 0) -> None:
    call = np.zeros(f.CALL_FIELDS, np.int64)
    call[f.CALL_OP], call[f.CALL_ROWS] = operation, argument
    execute(workspace.record, call.ctypes.data)


def _end(execute: Execute, workspace: Workspace, threads: list[threading.Thread]) -> None:
    """Runs once, at `close`, when the owner is collected, or at exit; its arguments keep alive what threads touch."""
    _operate(execute, workspace, f.OP_QUIT)
    for thread in threads:
        thread.join(_SETTLE_DEADLINE_S)
