"""`PackedMatrix`: one weight matrix in the packed layout, and the cuts that need no repacking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import LayoutError
from .formats import BLOCK_COLS, GROUP_ROWS, WeightFormat, weight_format

U8 = npt.NDArray[np.uint8]

NUM_SEGMENTS = 8  # contiguous parts of the ffn width that DOWN sums apart (docs/numerics.md)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """`rows` outputs × `cols` inputs, y = W x. `data` is flat uint8, groups of 16 rows one after the other.

    Rows are padded to 16 and columns to 32 with zero weights; `rows` and `cols` do not count the padding.
    """

    kind: str
    rows: int
    cols: int
    data: U8

    def __post_init__(self) -> None:
        expected = self.num_groups * self.group_bytes
        if self.data.dtype != np.uint8 or self.data.shape != (expected,):
            found = f"{self.data.dtype}{list(self.data.shape)}"
            raise LayoutError(f"{self.kind} matrix {self.rows}x{self.cols} takes uint8[{expected}], found {found}")

    @property
    def format(self) -> WeightFormat:
        return weight_format(self.kind)

    @property
    def num_groups(self) -> int:
        return -(-self.rows // GROUP_ROWS)

    @property
    def num_blocks(self) -> int:
        return self.format.blocks(self.cols)

    @property
    def group_bytes(self) -> int:
        return self.format.group_bytes(self.cols)


def packed_bytes(kind: str, rows: int, cols: int) -> int:
    """Size of a packed matrix, before it exists."""
    return -(-rows // GROUP_ROWS) * weight_format(kind).group_bytes(cols)


def slice_rows(matrix: PackedMatrix, lo: int, hi: int) -> PackedMatrix:
    """Rows [lo, hi) as a view. `lo` lies on a boundary of 16 rows; `hi` too, or is the last row."""
    if not 0 <= lo <= hi <= matrix.rows or lo % GROUP_ROWS or (hi % GROUP_ROWS and hi != matrix.rows):
        raise LayoutError(f"rows [{lo}, {hi}) of {matrix.rows} do not lie on boundaries of {GROUP_ROWS} rows")
    size = matrix.group_bytes
    data = matrix.data[lo // GROUP_ROWS * size : -(-hi // GROUP_ROWS) * size]
    return PackedMatrix(matrix.kind, hi - lo, matrix.cols, data)


def segment_bounds(num_blocks: int) -> list[int]:
    """The 9 block indices between which the 8 segments of DOWN lie: segment s is [s·n // 8, (s + 1)·n // 8)."""
    return [s * num_blocks // NUM_SEGMENTS for s in range(NUM_SEGMENTS + 1)]


def ffn_slice(ffn_size: int, part: int, parts: int) -> tuple[int, int]:
    """Columns [lo, hi) of the ffn that slice `part` of `parts` (2, 4, 8) holds: its segments of DOWN, whole blocks.

    Raises LayoutError, with the numbers, where some slice would hold no block of 32.
    """
    blocks = -(-ffn_size // BLOCK_COLS)
    if not 0 <= part < parts or parts < 2 or NUM_SEGMENTS % parts:
        raise LayoutError(f"ffn slice {part}/{parts}: DOWN sums {NUM_SEGMENTS} segments, so 2, 4 or 8 slices are exact")
    if blocks < parts:
        raise LayoutError(
            f"{parts} ffn slices: {ffn_size} columns are {blocks} blocks of {BLOCK_COLS}, one a slice at least"
        )
    bounds, each = segment_bounds(blocks), NUM_SEGMENTS // parts
    lo, hi = bounds[part * each], bounds[(part + 1) * each]
    return lo * BLOCK_COLS, min(hi * BLOCK_COLS, ffn_size)


def slice_cols(matrix: PackedMatrix, lo: int, hi: int) -> PackedMatrix:
    """Columns [lo, hi) as a copy: a slice of the ffn width. Both ends lie between units of the format.

    A unit is 32 columns, or 256 in K-quants, whose scales span 8 blocks.
    """
    unit = matrix.format.unit_cols
    if not 0 <= lo < hi <= matrix.cols or lo % unit or (hi % unit and hi != matrix.cols):
        raise LayoutError(f"columns [{lo}, {hi}) of {matrix.cols} do not lie on boundaries of {unit} columns")
    size = matrix.format.unit_bytes
    groups = matrix.data.reshape(matrix.num_groups, -1)
    data = np.ascontiguousarray(groups[:, lo // unit * size : -(-hi // unit) * size]).reshape(-1)
    return PackedMatrix(matrix.kind, matrix.rows, hi - lo, data)


def can_concat_rows(kinds: Sequence[str], rows: Sequence[int]) -> bool:
    """Whether matrices of these kinds and row counts can be stored as one: one kind, no padding between them."""
    return len(set(kinds)) == 1 and all(r % GROUP_ROWS == 0 for r in rows[:-1])


def concat_rows(parts: Sequence[PackedMatrix]) -> PackedMatrix:
    """The matrices stacked by rows (q|k|v, gate|up) as one. Same kind and columns, see `can_concat_rows`."""
    if not can_concat_rows([p.kind for p in parts], [p.rows for p in parts]) or len({p.cols for p in parts}) != 1:
        shapes = ", ".join(f"{p.kind} {p.rows}x{p.cols}" for p in parts)
        raise LayoutError(f"cannot stack matrices of different kind or width, or rows that are not n·16: {shapes}")
    data = np.concatenate([p.data for p in parts])
    return PackedMatrix(parts[0].kind, sum(p.rows for p in parts), parts[0].cols, data)


def padded_cols(cols: int) -> int:
    """`cols` rounded up to whole blocks of 32."""
    return -(-cols // BLOCK_COLS) * BLOCK_COLS
