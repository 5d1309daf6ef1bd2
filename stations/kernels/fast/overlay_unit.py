"""What the seal of an O(1) layer and a rollback of its rows call, as a unit: the kernels that step such layers."""

from __future__ import annotations

from ...kv.table import Group
from .attention_overlay import add_ring_row, step_group
from .attention_seal import fill_group
from .compiled import kernel
from .fields import OVERLAY_FILL, OVERLAY_STEP
from .machine import field, load_f32
from .vector import LANES

_SCRATCH = int(Group.SCRATCH)
_FILL, _STEP = OVERLAY_FILL, OVERLAY_STEP


@kernel
def overlay_call(op, group, q, out, rows, first, k, v, head_dim, scale, scratch):
    """`op` on the group at address `group`; q, k, v, out f32 [.., head_dim] without padding, `scale` at an address.

    FILL: q [far heads, rows, head_dim], k and v [rows, head_dim] of a prompt. STEP: `rows` query heads, k and v one
    row with room for whole vectors. REPLAY: `rows` rows of the ring from row `first` on.
    """
    blocks, factor = (head_dim + LANES - 1) // LANES, load_f32(scale)
    if op == _FILL:
        fill_group(group, q, rows * head_dim * 4, rows, k, v, head_dim, blocks, factor, scratch)
    elif op == _STEP:
        step_group(group, rows, k, 4, v, q, head_dim * 4, out, head_dim * 4, head_dim, blocks, factor)
    else:
        for row in range(first, first + rows):
            add_ring_row(group, row, blocks, factor, field(group, _SCRATCH))
