"""What the engine asks of the fleet that started its stations: names, addresses, how they ended, what they said.

The engine never starts or kills a process itself. A fleet restarts a station that died (or does not); the engine
reads `url` anew for every dial, so a restarted station may come back on another port.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class StationProcess(Protocol):
    """One station process of a fleet, as the engine sees it."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """Where it listens now (`ws://…`, `wss://…`); empty until it is ready, and after it died until it is back."""
        ...

    @property
    def pid(self) -> int:
        """Process id; 0 when it does not run."""
        ...

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last process that ended (negative: killed by that signal); None if none has ended."""
        ...

    def log_tail(self, lines: int = 5) -> Sequence[str]:
        """The last lines the process wrote to stderr, oldest first."""
        ...
