"""The attention kernel as a unit of its own: compiled once, not into every place that runs chunks."""

from __future__ import annotations

import numpy as np

from ...kv.table import Header
from .attention import attend_rows
from .compiled import kernel
from .machine import field, load_f32

_HEAD_DIM = int(Header.HEAD_DIM)
_NO_SOFTCAP = np.float32(0)


@kernel
def attend_heads(kv_table, kv_head, heads, q, q_stride, out, out_stride, rows, seen, scale, scratch):
    """All query heads of one KV head, for `rows` rows of one sequence: row i sees the first seen + i stored rows.

    `q` and `out`: row 0's first head of this KV head; `scale` is the address of an f32.
    """
    head_bytes = field(kv_table, _HEAD_DIM) * 4
    attend_rows(kv_table, kv_head, kv_head * heads, (kv_head + 1) * heads, q, q_stride, head_bytes, out, out_stride,
                head_bytes, rows, seen, 0, load_f32(scale), _NO_SOFTCAP, 0, 0, 0, scratch)  # fmt: skip
