"""A layer's storage as compiled code sees it: int64 fields in one array whose address never changes.

`LayerKvCache.reserve(rows)` makes room and brings the fields up to date; compiled code then writes rows
SEQ .. SEQ + rows − 1 of the last segment and reads any segment; `commit(rows)` counts them. Heads without a slot
(dead heads) are not offered to compiled code.

The header is followed by SEGMENTS segments of SEGMENT_FIELDS fields each, in the order of their rows. Addresses are
those of KV head 0; the next head lies the matching `_STRIDE` further. Strides and addresses are in bytes.
"""

from __future__ import annotations

from enum import IntEnum

MAX_SEGMENTS = 4
HEADER_FIELDS = 16
SEGMENT_FIELDS = 16
TABLE_FIELDS = HEADER_FIELDS + MAX_SEGMENTS * SEGMENT_FIELDS


class Header(IntEnum):
    """Fields of the header."""

    SEQ = 0  # rows stored, committed
    KV_HEADS = 1
    PADDED_DIM = 2  # head_dim rounded up to a multiple of 16
    SEGMENTS = 3
    HEAD_DIM = 4


class Segment(IntEnum):
    """Fields of one segment, from HEADER_FIELDS + i · SEGMENT_FIELDS."""

    FIRST = 0  # stored row of the segment's row 0
    ROWS = 1  # rows it holds; the last segment also takes the rows that are reserved
    K_FORM = 2
    V_FORM = 3
    K = 4
    K_STRIDE = 5
    V = 6
    V_STRIDE = 7


class Form(IntEnum):
    """How a segment stores K or V."""

    F32 = 0  # K f32 [tiles, padded_dim, 16] (position last); V f32 [rows, padded_dim]
    F16 = 1  # the same in f16
