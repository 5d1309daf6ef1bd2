"""The packed layout keeps every weight bit, its size, and its cuts."""

from __future__ import annotations

import numpy as np
import pytest

from stations.errors import LayoutError
from stations.layout import (
    FORMATS,
    PackedMatrix,
    can_concat_rows,
    concat_rows,
    pack,
    packed_bytes,
    segment_bounds,
    slice_cols,
    slice_rows,
    unpack,
)

from .weights import KINDS, dequantized, packed_weights, raw_weights


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "cols"), [(16, 256), (49, 512), (1, 768)])
def test_unpacked_weights_equal_the_gguf_package_bit_for_bit(kind: str, rows: int, cols: int) -> None:
    raw = raw_weights(kind, rows, cols)
    packed = pack(kind.upper(), raw, rows, cols)
    assert np.array_equal(_bits(unpack(packed)), _bits(dequantized(kind, raw)))
    assert np.array_equal(_bits(unpack(packed, slice(rows // 2, rows))), _bits(dequantized(kind, raw)[rows // 2 :]))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_unquantised_columns_are_padded_to_blocks_with_zeros(kind: str) -> None:
    raw = raw_weights(kind, 5, 45)
    packed = pack(kind, raw, 5, 45)
    assert packed.num_blocks == 2
    assert np.array_equal(unpack(packed), dequantized(kind, raw))
    assert packed.data.size == packed_bytes(kind, 5, 45)


@pytest.mark.parametrize("kind", KINDS)
def test_no_format_grows_by_more_than_three_percent(kind: str) -> None:
    fmt = FORMATS[kind]
    source = 16 * fmt.unit_cols // fmt.source_block_cols * fmt.source_block_bytes
    assert source <= fmt.unit_bytes <= source * 1.03
    assert fmt.unit_bytes == {"q4_1": 320, "q4_0": 288, "q8_0": 544, "q4_k": 2368, "q6_k": 3360}.get(
        kind, fmt.unit_bytes
    )


def _code(k: int) -> int:
    return k if k < 16 else 31 - k


def test_q4_1_places_nibbles_and_scales_where_the_layout_says() -> None:
    rows = 16
    raw = np.zeros((rows, 20), np.uint8)
    raw[:, 0:2] = np.arange(rows, dtype=np.float16)[:, None].view(np.uint8)
    raw[:, 2:4] = (-np.arange(rows, dtype=np.float16))[:, None].view(np.uint8)
    raw[3, 4:] = np.arange(16) | (15 - np.arange(16)) << 4  # input k holds k, input 16 + k holds 15 - k
    data = pack("Q4_1", raw, rows, 32).data
    for word in range(4):
        lane = data[64 * word + 12 : 64 * word + 16]
        assert [int(b & 15) for b in lane] == [_code(8 * word + j) for j in range(4)]
        assert [int(b >> 4) for b in lane] == [_code(8 * word + 4 + j) for j in range(4)]
    assert np.array_equal(data[256:288].view(np.float16), np.arange(16))
    assert np.array_equal(data[288:320].view(np.float16), -np.arange(16))


@pytest.mark.parametrize("kind", KINDS)
def test_row_slices_are_views_and_column_slices_keep_the_weights(kind: str) -> None:
    packed = packed_weights(kind, 70, 2048)
    whole = unpack(packed)
    part = slice_rows(packed, 32, 70)
    assert np.shares_memory(part.data, packed.data)
    assert np.array_equal(unpack(part), whole[32:])
    for lo, hi in ((0, 1024), (1024, 2048), (512, 768)):
        assert np.array_equal(unpack(slice_cols(packed, lo, hi)), whole[:, lo:hi])


def test_stacked_matrices_equal_their_parts_and_mixed_ones_are_refused() -> None:
    q, k = packed_weights("q4_1", 48, 64, 1), packed_weights("q4_1", 16, 64, 2)
    assert np.array_equal(unpack(concat_rows([q, k])), np.concatenate([unpack(q), unpack(k)]))
    assert not can_concat_rows(["q4_k", "q6_k"], [16, 16])
    assert not can_concat_rows(["f16", "f16"], [17, 16])
    with pytest.raises(LayoutError, match="q8_0 16x64"):
        concat_rows([q, packed_weights("q8_0", 16, 64)])


def test_segments_cover_every_block_once() -> None:
    assert segment_bounds(48) == [0, 6, 12, 18, 24, 30, 36, 42, 48]
    assert segment_bounds(5) == [0, 0, 1, 1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize(
    ("kind", "size", "rows", "cols", "message"),
    [
        ("IQ2_XS", 64, 1, 32, "IQ2_XS is not supported; supported are F32, F16"),
        ("Q4_1", 19, 1, 32, "takes 20 bytes"),
        ("Q4_K", 144, 1, 128, r"n·256 weights, found 1x128"),
    ],
)
def test_bad_tensors_are_refused_with_the_numbers(kind: str, size: int, rows: int, cols: int, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        pack(kind, np.zeros(size, np.uint8), rows, cols)


def test_cuts_off_the_boundaries_are_refused() -> None:
    packed = packed_weights("q4_k", 64, 512)
    with pytest.raises(LayoutError, match="boundaries of 16 rows"):
        slice_rows(packed, 8, 64)
    with pytest.raises(LayoutError, match="boundaries of 256 columns"):
        slice_cols(packed, 0, 64)
    with pytest.raises(LayoutError, match="takes uint8"):
        PackedMatrix("q4_k", 64, 512, packed.data[:-1])
