"""The attention kernel as a unit of its own: compiled once, not into every place that runs chunks."""

from __future__ import annotations

from ...kv.table import HEADER_FIELDS, SEGMENT_FIELDS, Header, Segment
from .attention import attend_rows
from .attention_forms import VECTOR
from .attention_overlay import GROUP_BYTES, step_group
from .compiled import kernel
from .machine import copy_bytes, field, load_f32
from .vector import LANES

_SEQ, _HEAD_DIM, _WINDOW, _SINKS = int(Header.SEQ), int(Header.HEAD_DIM), int(Header.WINDOW), int(Header.SINKS)
_PADDED_DIM, _SOFTCAP_AT = int(Header.PADDED_DIM), int(Header.SOFTCAP) * 8
_MASS, _MASS_HEAD, _MASS_ROW = int(Header.MASS), int(Header.MASS_HEAD), int(Header.MASS_ROW)
_TRACE, _TRACE_ROW, _OVERLAY = int(Header.TRACE), int(Header.TRACE_ROW), int(Header.OVERLAY)
_SEGMENTS = int(Header.SEGMENTS)
_K, _K_STRIDE, _V, _V_STRIDE = int(Segment.K), int(Segment.K_STRIDE), int(Segment.V), int(Segment.V_STRIDE)


@kernel
def _step_sealed(kv_table, kv_head, heads, q, q_stride, out, out_stride, rows, row, scale):
    """Rows `row` and behind, of those that wait in the last segment, join a sealed layer one by one and are read."""
    last = kv_table + (HEADER_FIELDS + (field(kv_table, _SEGMENTS) - 1) * SEGMENT_FIELDS) * 8
    head_dim, blocks = field(kv_table, _HEAD_DIM), field(kv_table, _PADDED_DIM) // LANES
    group = field(kv_table, _OVERLAY) + kv_head * GROUP_BYTES
    keys = field(last, _K) + kv_head * field(last, _K_STRIDE)
    values = field(last, _V) + kv_head * field(last, _V_STRIDE)
    for i in range(rows):
        key = keys + (row + i) // LANES * blocks * LANES * VECTOR + (row + i) % LANES * 4
        step_group(group, heads, key, VECTOR, values + (row + i) * blocks * VECTOR, q + i * q_stride, head_dim * 4,
                   out + i * out_stride, head_dim * 4, head_dim, blocks, scale)  # fmt: skip


@kernel
def attend_heads(kv_table, kv_head, heads, q, q_stride, out, out_stride, rows, seen, scale, scratch):
    """All query heads of one KV head, for `rows` rows of one sequence: row i sees the first seen + i stored rows.

    `q` and `out`: row 0's first head of this KV head; `scale` is the address of an f32. Window, softcap, sinks, where
    attention mass and queries go, and whether the layer is sealed at O(1), stand in the layer's table.
    """
    head_bytes = field(kv_table, _HEAD_DIM) * 4
    row = seen - 1 - field(kv_table, _SEQ)
    if field(kv_table, _OVERLAY) != 0:
        _step_sealed(kv_table, kv_head, heads, q, q_stride, out, out_stride, rows, row, load_f32(scale))
        return
    trace = field(kv_table, _TRACE)
    if trace != 0:
        for i in range(rows):
            target = trace + (row + i) * field(kv_table, _TRACE_ROW) + kv_head * heads * head_bytes
            copy_bytes(target, q + i * q_stride, heads * head_bytes)
    sinks, mass, mass_row = field(kv_table, _SINKS), field(kv_table, _MASS), field(kv_table, _MASS_ROW)
    if sinks != 0:
        sinks += kv_head * heads * 4
    if mass != 0:
        mass += kv_head * field(kv_table, _MASS_HEAD) + row * mass_row
    attend_rows(kv_table, kv_head, kv_head * heads, (kv_head + 1) * heads, q, q_stride, head_bytes, out, out_stride,
                head_bytes, rows, seen, field(kv_table, _WINDOW), load_f32(scale), load_f32(kv_table + _SOFTCAP_AT),
                sinks, mass, mass_row, scratch)  # fmt: skip
