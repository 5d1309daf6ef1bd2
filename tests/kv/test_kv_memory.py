"""Where arrays of rows lie, and how they grow."""

from __future__ import annotations

import numpy as np
import pytest

from stations.kv.memory import LARGE_PAGE_BYTES, LINE_BYTES, aligned_zeros
from stations.kv.streams import next_capacity


@pytest.mark.parametrize(
    ("size", "boundary"),
    [
        (100, LINE_BYTES),
        (LARGE_PAGE_BYTES * 2 // 3 - 64, LINE_BYTES),  # a whole page would be more than half as much again
        (LARGE_PAGE_BYTES * 2 // 3 + 64, LARGE_PAGE_BYTES),
        (LARGE_PAGE_BYTES, LARGE_PAGE_BYTES),  # the line behind it is in an ordinary page
        (LARGE_PAGE_BYTES * 5 + 1, LARGE_PAGE_BYTES),
    ],
)
def test_arrays_begin_with_a_line_and_those_that_fill_large_pages_with_one(size: int, boundary: int) -> None:
    array = aligned_zeros((size,), np.uint8)
    assert array.ctypes.data % boundary == 0
    assert array.shape == (size,)
    assert not array.any()
    array[:] = 255  # all of it is there


def test_small_caches_double_and_large_ones_grow_by_a_third() -> None:
    sizes = [0]
    while sizes[-1] < 10_000:
        sizes.append(next_capacity(sizes[-1] + 1, sizes[-1]))
    assert sizes == [0, 64, 128, 256, 512, 1024, 1536, 2048, 2752, 3680, 4928, 6592, 8800, 11744]
    assert next_capacity(5000, 64) == 5024  # rows that come at once get no more than they need
