"""The log of one station: a bounded ring of its last lines, and a bounded file that outlives the process.

Without the bounds a station that complains in a loop would fill the launcher's memory, then the disk.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import BinaryIO

RING_LINES = 200
MAX_LINE_BYTES = 4096  # a longer line is cut into several
MAX_FILE_BYTES = 4 << 20  # then the file becomes `<name>.log.1` and a new one begins


def log_path(directory: Path, station: str) -> Path:
    """Where a station's log lies in its fleet's directory."""
    return directory / f"{station}.log"


def last_lines(path: Path, count: int) -> tuple[str, ...]:
    """The last `count` lines of a log file, oldest first; none where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - count * MAX_LINE_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[-count:])


class StationLog:
    """Collects bytes of stderr. `path` None keeps the ring only."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lines: deque[str] = deque(maxlen=RING_LINES)
        self._partial = b""
        self._file: BinaryIO | None = None
        self._file_bytes = 0

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, the unfinished one included."""
        partial = (self._partial.decode("utf-8", "replace"),) if self._partial else ()
        return (*self._lines, *partial)

    def feed(self, data: bytes) -> None:
        self._write(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._append(line)
        while len(self._partial) > MAX_LINE_BYTES:
            self._append(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]

    def note(self, text: str) -> None:
        """A line of the launcher's own, such as a restart."""
        self.feed(f"[launcher] {text}\n".encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, line: bytes) -> None:
        self._lines.append(line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r"))

    def _write(self, data: bytes) -> None:
        if self.path is None:
            return
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
            self._file_bytes = self._file.tell()
        if self._file_bytes + len(data) > MAX_FILE_BYTES:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self.path.open("ab", buffering=0)
            self._file_bytes = 0
        self._file.write(data)
        self._file_bytes += len(data)
