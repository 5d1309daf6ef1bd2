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
    WINDOW = 5  # rows a query sees, the newest, itself included; 0: all
    SOFTCAP = 6  # bits of an f32; 0: off
    SINKS = 7  # f32 [query heads], 0: none
    MASS = 8  # f32 [rows of the pass, ≥ rows stored], zeros that probabilities are added to, head by head; 0: not kept
    MASS_HEAD = 9  # bytes from one KV head's part to the next: 0, they share it, since one thread computes them all
    MASS_ROW = 10  # bytes from one row of the pass to the next
    TRACE = 11  # f32 [rows of the pass, query heads · head_dim]: rotated queries are copied there; 0: not kept
    TRACE_ROW = 12  # bytes from one row of the pass to the next
    OVERLAY = 13  # GROUP_FIELDS a KV head: the layer is sealed, its rows wait in the last segment to join; 0: not


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
    K_SCALE = 8
    K_SCALE_STRIDE = 9
    V_SCALE = 10
    V_SCALE_STRIDE = 11
    K_COLUMN = 12  # Q8: columns, 0 while they are 1, stride padded_dim · 4; Q4: minima, strided like the scales
    V_COLUMN = 13


class Form(IntEnum):
    """How a segment stores K or V."""

    F32 = 0  # K f32 [tiles, padded_dim, 16] (row last); V f32 [rows, padded_dim]
    F16 = 1  # the same in f16
    Q8 = 2  # K u8, code + 128, [tiles, padded_dim / 4, 16 rows, 4 dims], scales f32 [tiles, groups of 32 dims, 16];
    #         V int8 [rows / 4, padded_dim, 4 rows], scales f32 [rows]
    Q4 = 3  # K u32 [tiles, padded_dim / 8, 16], scales and minima f16 [groups of 32 rows, padded_dim];
    #         V nibbles [rows / 4, groups of 32 dims, 16, 4 rows], scales and minima f16 [rows / 16, groups, 16]


class Group(IntEnum):
    """A sealed KV group (`overlay_group.py`). Its segments follow the fields, in the order of `GroupSegment`."""

    ROWS = 0  # that came so far
    SINK = 1  # first rows kept
    WINDOW = 2  # newest rows that heads with a far field read
    RING = 3  # newest rows that the others read
    SLOTS = 4  # of the ring: row r lies in slot r mod SLOTS
    MARKS = 5  # landmarks, 0 without a far field
    FAR_HEADS = 6
    KEEPS_SIGN = 7  # 0: weights below 0 become 0
    HEADS = 8  # int64 [heads]: the query heads with a far field first, then the others
    LEVEL = 9  # f32 [far heads]
    Z = 10  # f32 [far heads, padded marks]
    TOP = 11  # likewise
    SCRATCH = 12


class GroupSegment(IntEnum):
    """Streams of a group, strides from one far head to the next."""

    SINKS = 0
    RING = 1
    MARKS = 2  # K: landmark keys
    FAR = 3  # K: landmark queries; V: the sums T
    INVERSE = 4  # V: rows of M


NUM_GROUP_SEGMENTS = len(GroupSegment)
GROUP_HEAD_FIELDS = 16
GROUP_FIELDS = GROUP_HEAD_FIELDS + NUM_GROUP_SEGMENTS * SEGMENT_FIELDS
