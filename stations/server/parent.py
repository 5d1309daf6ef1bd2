"""Leaving with the launcher: when stdin ends, whatever ended it, the station must go.

A thread of its own watches from the first moment on, also while weights are loaded and the event loop does not run
yet; if the orderly way out takes too long it ends the process itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

GRACE_S = 5.0  # for the orderly way out, once the parent is gone
ORPHAN_STATUS = 3


class ParentWatch:
    """Calls `leave`, from its thread, when stdin has ended. It is set once there is something to stop (`on_gone`)."""

    def __init__(self, stdin: int = 0) -> None:
        self._stdin = stdin
        self._leave: Callable[[], None] | None = None
        self._is_gone = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="parent watch", daemon=True).start()

    def on_gone(self, leave: Callable[[], None]) -> None:
        """Call `leave` when the parent is gone, at once if it is already."""
        with self._lock:
            self._leave = leave
            is_late = self._is_gone.is_set()
        if is_late:
            leave()

    def _watch(self) -> None:
        try:
            while os.read(self._stdin, 4096):
                pass
        except OSError:
            pass  # a closed stdin is an ended one
        with self._lock:
            self._is_gone.set()
            leave = self._leave
        if leave is None:
            os._exit(ORPHAN_STATUS)  # still starting: nothing to drain, nobody to tell
        leave()
        threading.Event().wait(GRACE_S)
        os._exit(ORPHAN_STATUS)
