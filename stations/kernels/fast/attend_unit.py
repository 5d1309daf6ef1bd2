"""The attention kernel as a unit of its own: compiled once, not into every place that runs chunks."""

from __future__ import annotations

from ...kv.table import Header
from .attention import attend_rows
from .compiled import kernel
from .machine import field, load_f32

_SEQ, _HEAD_DIM, _WINDOW, _SINKS = int(Header.SEQ), int(Header.HEAD_DIM), int(Header.WINDOW), int(Header.SINKS)
_SOFTCAP_AT = int(Header.SOFTCAP) * 8
_MASS, _MASS_HEAD, _MASS_ROW = int(Header.MASS), int(Header.MASS_HEAD), int(Header.MASS_ROW)


@kernel
def attend_heads(kv_table, kv_head, heads, q, q_stride, out, out_stride, rows, seen, scale, scratch):
    """All query heads of one KV head, for `rows` rows of one sequence: row i sees the first seen + i stored rows.

    `q` and `out`: row 0's first head of this KV head; `scale` is the address of an f32. Window, softcap, sinks and
    where attention mass goes are the layer's: they stand in its table.
    """
    head_bytes = field(kv_table, _HEAD_DIM) * 4
    sinks, mass, mass_row = field(kv_table, _SINKS), field(kv_table, _MASS), field(kv_table, _MASS_ROW)
    if sinks != 0:
        sinks += kv_head * heads * 4
    if mass != 0:
        mass += kv_head * field(kv_table, _MASS_HEAD) + (seen - 1 - field(kv_table, _SEQ)) * mass_row
    attend_rows(kv_table, kv_head, kv_head * heads, (kv_head + 1) * heads, q, q_stride, head_bytes, out, out_stride,
                head_bytes, rows, seen, field(kv_table, _WINDOW), load_f32(scale), load_f32(kv_table + _SOFTCAP_AT),
                sinks, mass, mass_row, scratch)  # fmt: skip
