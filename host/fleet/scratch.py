"""Temporary folders of launched fleets, held by a lock as long as their launcher lives.

A launcher that is killed leaves its folder, with a secret that opens nothing any more; the next one removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .state import try_lock

PREFIX = "aeonflow-"
_LOCK, _NEW_LOCK = "lock", "lock.new"


class ScratchFolder:
    """A new folder (0700). `remove` it; whatever ends the process gives it up."""

    def __init__(self, root: Path | None = None) -> None:
        """`root` None: the system's folder for temporary files. Removes what killed launchers left there."""
        parent = root or Path(tempfile.gettempdir())
        _remove_given_up(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # Locked before it gets its name: nobody finds a lock of a living launcher that is not held.
        self._lock = os.open(self.path / _NEW_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try_lock(self._lock)
        (self.path / _NEW_LOCK).rename(self.path / _LOCK)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_given_up(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with _lock_of(folder) as is_given_up:
            if is_given_up:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _lock_of(folder: Path) -> Iterator[bool]:
    """Whether the folder is one of ours and nobody holds it."""
    try:
        is_ours = folder.lstat().st_uid == os.geteuid()
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # no folder of a launcher, or another user's
        yield False
        return
    try:
        yield is_ours and try_lock(descriptor)
    finally:
        os.close(descriptor)
