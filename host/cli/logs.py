"""Printing a station's log file: its last lines, and what is added while one watches."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from host.fleet.logs import MAX_FILE_BYTES

FOLLOW_POLL_S = 0.2


def print_log(path: Path, *, lines: int, follow: bool) -> None:
    """The last `lines` lines of the file on stdout; with `follow`, what comes after until the file is removed."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_FILE_BYTES))
        tail = file.read().splitlines(keepends=True)[-lines:]
        sys.stdout.buffer.write(b"".join(tail))
        sys.stdout.buffer.flush()
        while follow and path.exists():
            if more := file.read():
                sys.stdout.buffer.write(more)
                sys.stdout.buffer.flush()
            else:
                time.sleep(FOLLOW_POLL_S)
