"""A process's pool of large pages (2 MB): arrays of any size lie in them side by side, so none is too small for one.

Memory is mapped in areas. In each two sets of spans are kept: what is free, and what of that was used before and not
given back, which is zeroed when it is handed out again; memory that was never touched, or was given back, is zero.
What becomes free goes back to the system by whole large pages, and an area with its last array.

An array's memory is free when the last view of it is gone. Every view's `base` is the array handed out, which numpy
passes no further since that one's base is a memoryview of the mapping, no array. Arrays take no part in the collection
of cycles, so the weak reference to it ends when it is deallocated and no sooner. Areas are private mappings
(MAP_PRIVATE): a forked process would have copies. It knows nothing of rows.
"""

from __future__ import annotations

import mmap
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from threading import Lock

import numpy as np
import numpy.typing as npt

LARGE_PAGE_BYTES = 2 << 20
AREA_BYTES = 32 << 20  # of address space at a time, or as many large pages as one array fills; a multiple of them
LINE_BYTES = 64

U8 = npt.NDArray[np.uint8]


class Spans:
    """Disjoint spans [start, end), ascending; those that touch are one."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def add(self, start: int, end: int) -> tuple[int, int]:
        """Returns the span that [start, end) is part of now."""
        lo, hi = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if lo < hi:
            start, end = min(start, self._starts[lo]), max(end, self._ends[hi - 1])
        self._starts[lo:hi], self._ends[lo:hi] = [start], [end]
        return start, end

    def remove(self, start: int, end: int) -> list[tuple[int, int]]:
        """Returns what of [start, end) was in them."""
        lo, hi = bisect_right(self._ends, start), bisect_left(self._starts, end)
        found = list(zip(self._starts[lo:hi], self._ends[lo:hi], strict=True))
        rest = [(s, e) for s, e in ((s, min(e, start)) for s, e in found) if s < e]
        rest += [(s, e) for s, e in ((max(s, end), e) for s, e in found) if s < e]
        self._starts[lo:hi], self._ends[lo:hi] = [s for s, _ in rest], [e for _, e in rest]
        return [(max(s, start), min(e, end)) for s, e in found]


class Area:
    """A mapping that begins with a large page. Places in it are bytes from there."""

    __slots__ = ("_bytes", "_first", "_free", "_map", "_used", "size")

    def __init__(self, size: int) -> None:
        """`size` bytes, whole large pages. Raises MemoryError if the system has none."""
        self.size = size
        try:
            self._map = mmap.mmap(-1, size + LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size:,} bytes of arrays: {error.strerror}") from error
        self._first = -np.frombuffer(self._map, np.uint8).ctypes.data % LARGE_PAGE_BYTES
        self._bytes = np.frombuffer(self._map, np.uint8, size, self._first)
        self._free, self._used = Spans(), Spans()  # `_used`: the part of what is free that may not be zero
        self._free.add(0, size)
        self._advise(mmap.MADV_HUGEPAGE, 0, size)

    @property
    def is_free(self) -> bool:
        return list(self._free) == [(0, self.size)]

    def take(self, size: int) -> int | None:
        """The first place with `size` bytes, zeroed; None if there is none."""
        start = next((start for start, end in self._free if end - start >= size), None)
        if start is not None:
            self._free.remove(start, start + size)
            for lo, hi in self._used.remove(start, start + size):
                self._bytes[lo:hi] = 0
        return start

    def give(self, start: int, end: int) -> None:
        """[start, end) is free. Large pages that it made so go back to the system, which gives them zeroed again."""
        self._used.add(start, end)
        free_start, free_end = self._free.add(start, end)
        lo = -(-max(free_start, _page(start)) // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
        hi = _page(min(free_end, _page(end - 1) + LARGE_PAGE_BYTES))
        if lo < hi and self._advise(mmap.MADV_DONTNEED, lo, hi):
            self._used.remove(lo, hi)

    def array(self, start: int, size: int) -> U8:
        """`size` bytes as an array that is no view of another one."""
        return np.frombuffer(self._map, np.uint8, size, self._first + start)

    def _advise(self, option: int, start: int, end: int) -> bool:
        """Whether the system took the advice: without large pages, or with pages locked, it does not."""
        try:
            self._map.madvise(option, self._first + start, end - start)
        except OSError:
            return False
        return True


class LargePages:
    """A pool; its arrays may be made and may end in any thread."""

    def __init__(self, area_bytes: int = AREA_BYTES) -> None:
        self._area_bytes = area_bytes
        self._areas: list[Area] = []
        self._ended: deque[tuple[Area, int, int]] = deque()
        self._lock = Lock()

    @property
    def mapped_bytes(self) -> int:
        """Of address space. What of it was never written takes no memory."""
        return sum(area.size for area in self._areas)

    def zeros(self, size: int) -> U8:
        """`size` ≥ 1 zeroed bytes on a line's boundary, which are theirs up to the end of their last line."""
        whole = -(-size // LINE_BYTES) * LINE_BYTES
        with self._lock:
            self._take_back()
            area, start = self._place(whole)
            array = area.array(start, size)
            end = weakref.finalize(array, self._end, area, start, start + whole)
            end.atexit = False
        self._tidy()
        return array

    def _place(self, size: int) -> tuple[Area, int]:
        for area in self._areas:
            start = area.take(size)
            if start is not None:
                return area, start
        pages = -(-size // LARGE_PAGE_BYTES)
        area = Area(max(self._area_bytes, pages * LARGE_PAGE_BYTES))
        self._areas.append(area)
        start = area.take(size)
        assert start is not None
        return area, start

    def _end(self, area: Area, start: int, end: int) -> None:
        """Called whenever an array ends: in any thread, and in the midst of this pool's own work as well."""
        self._ended.append((area, start, end))
        self._tidy()

    def _tidy(self) -> None:
        """Take back what has ended, unless somebody is at work in the pool: they look again when they have left it."""
        while self._ended and self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        while self._ended:
            area, start, end = self._ended.popleft()
            area.give(start, end)
            if area.is_free:
                self._areas.remove(area)  # unmapped with the last reference to it


def _page(place: int) -> int:
    """Where the large page of a place begins."""
    return place // LARGE_PAGE_BYTES * LARGE_PAGE_BYTES


POOL = LargePages()
