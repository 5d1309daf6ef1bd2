"""The pool that arrays of rows lie in: apart from each other, zeroed, in large pages, and given back."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stations.kv import LayerKvCache
from stations.kv.large_pages import LARGE_PAGE_BYTES, LINE_BYTES, U8, LargePages, Spans
from stations.kv.memory import LEAST_POOLED_BYTES, aligned_zeros

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PLACES = 40
KIB, MIB = 1 << 10, 1 << 20

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages to ask for")


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def in_large_pages(address: int) -> int:
    """Bytes in large pages of the mapping that `address` is in."""
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            low, high = (int(edge, 16) for edge in first.split("-"))
            is_it = low <= address < high
        elif is_it and first == "AnonHugePages:":
            return int(rest[0]) * KIB
    return 0


spans = st.tuples(st.integers(0, PLACES - 1), st.integers(1, 12)).map(lambda s: (s[0], min(s[0] + s[1], PLACES)))


@given(st.lists(st.tuples(st.booleans(), spans), max_size=30))
def test_spans_are_the_set_of_their_places(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    held, model = Spans(), set[int]()
    for adds, (start, end) in steps:
        places = set(range(start, end))
        if adds:
            model |= places
            low, high = held.add(start, end)
            assert set(range(low, high)) <= model
            assert low - 1 not in model
            assert high not in model
        else:
            assert {place for low, high in held.remove(start, end) for place in range(low, high)} == model & places
            model -= places
        assert {place for low, high in held for place in range(low, high)} == model
        edges = [edge for span in held for edge in span]
        assert edges == sorted(set(edges))  # apart, and none empty


sizes = st.one_of(
    st.integers(1, 300 * KIB),
    st.integers(1, 5 * MIB),
    st.sampled_from([LINE_BYTES, LARGE_PAGE_BYTES, 2 * LARGE_PAGE_BYTES, 2 * LARGE_PAGE_BYTES - LINE_BYTES]),
)


def checked(array: U8, size: int, live: list[tuple[U8, int]]) -> U8:
    """`array`, which is new beside the live ones."""
    start = array.ctypes.data
    assert len(array) == size
    assert start % LINE_BYTES == 0
    assert not array.any()
    for other, _ in live:
        assert start + size <= other.ctypes.data or other.ctypes.data + len(other) <= start
    return array


@given(st.lists(st.one_of(sizes, st.integers(-30, -1)), max_size=24))
@settings(max_examples=40, deadline=None)
def test_arrays_are_zeroed_and_lie_apart_whichever_were_freed_before(steps: list[int]) -> None:
    pool = LargePages(area_bytes=2 * LARGE_PAGE_BYTES)
    live: list[tuple[U8, int]] = []
    for number, step in enumerate(steps, 1):
        if step > 0:
            live.append((checked(pool.zeros(step), step, live), number))
            live[-1][0][:] = number
        elif live:
            live.pop(step % len(live))
        assert all((array == number).all() for array, number in live)
    live.clear()
    assert pool.mapped_bytes == 0


def test_an_array_is_free_when_its_last_view_is_gone() -> None:
    pool = LargePages()
    beside = pool.zeros(MIB)
    array = pool.zeros(MIB)
    address = array.ctypes.data
    view = array[LINE_BYTES:].view(np.float32).reshape(2, -1)[:, ::3].T
    assert view.base is array
    buffer = memoryview(view)
    del array, view
    other = pool.zeros(MIB)
    assert other.ctypes.data == address + MIB
    del buffer
    again = pool.zeros(MIB)
    assert again.ctypes.data == address
    assert beside.ctypes.data == address - MIB


def test_arrays_may_end_while_the_pool_is_at_work() -> None:
    pool = LargePages()
    kept = pool.zeros(1)
    threshold = gc.get_threshold()
    gc.set_threshold(1)  # cycles are collected wherever an object is made, so within the pool as well
    try:
        for size in range(64 * KIB, 264 * KIB, KIB):
            cycle: list[object] = [pool.zeros(size)]
            cycle.append(cycle)
    finally:
        gc.set_threshold(*threshold)
    del cycle
    gc.collect()
    assert pool.zeros(30 * MIB).ctypes.data == kept.ctypes.data + LINE_BYTES  # all of it is back


def test_threads_make_and_end_each_others_arrays() -> None:
    pool = LargePages(area_bytes=2 * LARGE_PAGE_BYTES)
    shared: deque[tuple[U8, int]] = deque()
    wrong: list[str] = []

    def work(number: int) -> None:
        random = Random(number)
        for _ in range(150):
            array = pool.zeros(random.randrange(1, 200 * KIB))
            if array.any():
                wrong.append("not zeroed")
            array[:] = number
            shared.append((array, number))
            del array
            if len(shared) > 20:
                other, of = shared.popleft()
                if not (other == of).all():
                    wrong.append("overwritten")
                del other

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all((array == of).all() for array, of in shared)
    shared.clear()
    assert pool.mapped_bytes == 0


def test_memory_goes_back_to_the_system_with_the_arrays() -> None:
    pool = LargePages()
    small = pool.zeros(100 * KIB)
    before = resident()
    arrays = [pool.zeros(size * MIB) for size in (5, 20, 40)]
    for array in arrays:
        array[:] = 1
    assert resident() - before > 60 * MIB
    del array
    arrays.clear()
    assert resident() - before < 8 * MIB
    assert pool.mapped_bytes == 32 * MIB  # where `small` is
    del small
    assert pool.mapped_bytes == 0


def test_thirty_layers_of_4000_rows_take_little_more_than_their_bytes() -> None:
    rows = np.ones((4000, 3, 64), np.float32)
    LayerKvCache(3, 64, "f16").append(rows, rows)  # what appending itself needs
    before = resident()
    layers = [LayerKvCache(3, 64, "f16", len(rows)) for _ in range(30)]
    for layer in layers:
        layer.append(rows, rows)
    assert resident() - before < 1.15 * sum(layer.memory_bytes() for layer in layers)


def test_arrays_smaller_than_a_large_page_lie_in_one() -> None:
    if not ENABLED.exists() or "[never]" in ENABLED.read_text():
        pytest.skip("the system gives no large pages")
    arrays = [aligned_zeros((LEAST_POOLED_BYTES,), np.uint8) for _ in range(200)]
    for array in arrays:
        array[:] = 1
    assert in_large_pages(arrays[100].ctypes.data) > 0


def test_arrays_that_live_to_the_end_of_the_process_are_no_trouble() -> None:
    code = (
        "import numpy as np; from stations.kv.memory import aligned_zeros\n"
        "kept = aligned_zeros((1 << 20,), np.uint8); cycle = [aligned_zeros((1 << 20,), np.uint8)]; cycle.append(cycle)"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
