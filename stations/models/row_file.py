"""A file whose matrices are read by rows on demand: never mapped, so an import's memory does not grow with the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .checkpoint import U8
from .errors import CorruptModelError, ModelNotFoundError


class RowFile:
    """An open file of `size` bytes. Raises ModelNotFoundError when it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ModelNotFoundError(f"{path}: {error.strerror}") from error
        self.size = os.fstat(self.fd).st_size

    def close(self) -> None:
        """Close it; readers made by `rows` can no longer be used."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def pread(self, count: int, at: int) -> bytes:
        """Up to `count` bytes from position `at`."""
        return os.pread(self.fd, count, at)

    def rows(self, first: int, width: int) -> Callable[[int, int], U8]:
        """`read(lo, hi)` → u8 [hi - lo, width] of rows that lie one after the other from byte `first`.

        Reading raises CorruptModelError when the file ends before the rows do.
        """

        def read(lo: int, hi: int) -> U8:
            data = np.empty((hi - lo, width), np.uint8)
            view, at = data.data.cast("B"), first + lo * width
            while view:
                count = os.preadv(self.fd, [view], at)
                if count == 0:
                    raise CorruptModelError(f"{self.path}: cut short at byte {at:,}, {len(view):,} more are needed")
                view, at = view[count:], at + count
            return data

        return read
