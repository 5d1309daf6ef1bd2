"""Printing a station's log file: its last lines, and what is added while one watches."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import BinaryIO

from host.fleet.logs import MAX_FILE_BYTES

FOLLOW_POLL_S = 0.2


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of the file; bytes that are not UTF-8 become U+FFFD."""
    with path.open("rb") as file:
        return [line.decode("utf-8", "replace").rstrip("\n") for line in _tail(file, path, count)]


def print_log(path: Path, *, lines: int, follow: bool) -> None:
    """The last `lines` lines of the file on stdout; with `follow`, what comes after until the file is removed."""
    with path.open("rb") as file:
        sys.stdout.buffer.write(b"".join(_tail(file, path, lines)))
        sys.stdout.buffer.flush()
        while follow and path.exists():
            if more := file.read():
                sys.stdout.buffer.write(more)
                sys.stdout.buffer.flush()
            else:
                time.sleep(FOLLOW_POLL_S)


def _tail(file: BinaryIO, path: Path, count: int) -> list[bytes]:
    file.seek(max(0, path.stat().st_size - MAX_FILE_BYTES))
    return file.read().splitlines(keepends=True)[-count:]
