"""Where arrays of rows lie, and how they grow."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from stations.kv.memory import LEAST_POOLED_BYTES, LINE_BYTES, aligned_zeros
from stations.kv.streams import next_capacity


@pytest.mark.parametrize("size", [1, 100, LEAST_POOLED_BYTES - 1, LEAST_POOLED_BYTES, 5_000_001])
def test_arrays_begin_with_a_line_and_one_behind_them_may_be_read(size: int) -> None:
    array = aligned_zeros((size,), np.uint8)
    assert array.ctypes.data % LINE_BYTES == 0
    assert array.shape == (size,)
    assert not array.any()
    array[:] = 255  # all of it is there
    assert bytes((ctypes.c_char * LINE_BYTES).from_address(array.ctypes.data + size)) == bytes(LINE_BYTES)


def test_small_caches_double_and_large_ones_grow_by_a_third() -> None:
    sizes = [0]
    while sizes[-1] < 10_000:
        sizes.append(next_capacity(sizes[-1] + 1, sizes[-1]))
    assert sizes == [0, 64, 128, 256, 512, 1024, 1536, 2048, 2752, 3680, 4928, 6592, 8800, 11744]
    assert next_capacity(5000, 64) == 5024  # rows that come at once get no more than they need
