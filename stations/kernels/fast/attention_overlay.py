"""A row of a sealed O(1) layer in compiled code: it joins its group, then every query head reads.

The meaning is `stations/kv/overlay_group.py`'s; memory lies as `stations/kv/table.py`, *Group*, says. Scores and
weighted sums are those of `attention.py`, so orders are fixed: rows ascending, landmarks ascending, dims in four
chains. One row at a time, so nothing depends on the pass; a group is changed by one thread only.
"""

from __future__ import annotations

import numpy as np

from ...kv.table import GROUP_FIELDS, GROUP_HEAD_FIELDS, SEGMENT_FIELDS, Form, Group, GroupSegment, Segment
from .attention import score_tiles, weigh_rows
from .attention_forms import VECTOR
from .attention_ir import clear, divide_row, mask_scores, start_top, to_weights
from .attention_overlay_ir import copy_strided, far_weights, highest_of, renew_sums, renew_values, scale_vectors
from .compiled import compiled
from .limits import MAX_QUERIES
from .machine import copy_bytes, copy_row, field, load_f32, set_field, store_f32
from .vector import LANES

_ROWS, _SINK, _WINDOW = int(Group.ROWS), int(Group.SINK), int(Group.WINDOW)
_RING, _SLOTS, _MARKS, _FAR_HEADS = int(Group.RING), int(Group.SLOTS), int(Group.MARKS), int(Group.FAR_HEADS)
_KEEPS_SIGN, _HEADS, _LEVEL = int(Group.KEEPS_SIGN), int(Group.HEADS), int(Group.LEVEL)
_Z, _TOP, _SCRATCH = int(Group.Z), int(Group.TOP), int(Group.SCRATCH)
_SINK_ROWS, _RING_ROWS, _MARK_ROWS = int(GroupSegment.SINKS), int(GroupSegment.RING), int(GroupSegment.MARKS)
_FAR, _INVERSE = int(GroupSegment.FAR), int(GroupSegment.INVERSE)
_K, _V, _V_STRIDE = int(Segment.K), int(Segment.V), int(Segment.V_STRIDE)
_F32, _ONE, _FIRST = np.int64(Form.F32), np.int64(1), np.int64(0)
_LEAST_DENOMINATOR = np.float32(1e-30)
_NO_CAP = np.float32(0)
GROUP_BYTES = GROUP_FIELDS * 8


@compiled
def _segment(group, which):
    return group + (GROUP_HEAD_FIELDS + which * SEGMENT_FIELDS) * 8


@compiled
def _tiles(rows):
    return (rows + LANES - 1) // LANES


@compiled
def add_far(group, key, value, blocks, scale, scratch):
    """One row, its key and value f32 [padded_dim], joins the far sums of every head.

    `scratch`: twice the padded landmarks, f32.
    """
    marks, vectors, far = field(group, _MARKS), _tiles(field(group, _MARKS)), _segment(group, _FAR)
    kept = scratch + vectors * VECTOR
    for f in range(field(group, _FAR_HEADS)):
        score_tiles(far, _F32, f, _FIRST, vectors, blocks, key, blocks * VECTOR, scale, scratch, vectors * VECTOR,
                    _ONE)  # fmt: skip
        mask_scores(scratch, vectors, 0, 0, marks, _NO_CAP, kept)
        at = f * vectors * VECTOR
        renew_sums(scratch, vectors, field(group, _TOP) + at, field(group, _Z) + at, kept)
        renew_values(field(far, _V) + f * field(far, _V_STRIDE), kept, scratch, marks, value, blocks)


@compiled
def add_ring_row(group, row, blocks, scale, scratch):
    """Row `row` of those that the ring holds joins the far sums. `scratch`: a key, then `add_far`'s."""
    ring, slot, wide = _segment(group, _RING_ROWS), row % field(group, _SLOTS), blocks * VECTOR
    key = field(ring, _K) + slot // LANES * wide * LANES + slot % LANES * 4
    copy_strided(scratch, 4, key, VECTOR, blocks * LANES)
    add_far(group, scratch, field(ring, _V) + slot * wide, blocks, scale, scratch + wide)


@compiled
def _insert(group, key, key_step, value, blocks, scale, scratch):
    """A row enters the ring; the one that leaves the window joins the far sums."""
    rows, ring, wide = field(group, _ROWS), _segment(group, _RING_ROWS), blocks * VECTOR
    if field(group, _FAR_HEADS) > 0:
        add_ring_row(group, rows - field(group, _WINDOW), blocks, scale, scratch)
    slot = rows % field(group, _SLOTS)
    target = field(ring, _K) + slot // LANES * wide * LANES + slot % LANES * 4
    copy_strided(target, VECTOR, key, key_step, blocks * LANES)
    copy_bytes(field(ring, _V) + slot * wide, value, wide)
    set_field(group, _ROWS, rows + 1)


@compiled
def _far_part(group, head, scores, stride, acc, blocks, top, den):
    """One head's share of the far field: u · T in `acc`, its level in `den`; returns u · Z, or 0 if that is below 0.

    `scores`: of the landmark keys; u goes behind them.
    """
    marks, vectors = field(group, _MARKS), _tiles(field(group, _MARKS))
    u = scores + vectors * VECTOR
    start_top(top)
    mask_scores(scores, vectors, 0, 0, marks, _NO_CAP, top)
    to_weights(scores, vectors, top, 0, den)
    largest = highest_of(top, 1)
    clear(u, vectors)
    weigh_rows(_segment(group, _INVERSE), _F32, head, _FIRST, marks, vectors, scores, stride, u, stride, den, _ONE)
    at = head * vectors * VECTOR
    highest = highest_of(field(group, _TOP) + at, vectors)
    mass = far_weights(u, vectors, field(group, _TOP) + at, highest, field(group, _Z) + at, field(group, _KEEPS_SIGN))
    if not mass > _NO_CAP:
        return _NO_CAP
    weigh_rows(_segment(group, _FAR), _F32, head, _FIRST, marks, blocks, u, stride, acc, blocks * VECTOR, den, _ONE)
    store_f32(den, largest - load_f32(field(group, _LEVEL) + head * 4) + highest)
    return mass


@compiled
def _span(part, first, rows, sink, slots):
    """Where part 0 to 2 of the near rows lies: [lo, hi) of the sinks, then of the ring up to its end, then from its
    beginning."""
    if part == 0:
        return 0, sink
    start = first % slots
    end = start + rows - first
    if part == 1:
        return start, min(end, slots)
    return 0, max(end - slots, 0)


@compiled
def _read(group, done, queries, is_far, window, heads, q, q_head_bytes, out, out_head_bytes, head_dim, blocks, scale,
          scratch):  # fmt: skip
    """At most MAX_QUERIES heads, from number `done` of the group's order on, over sinks, window and far field."""
    wide, rows, sink, slots = blocks * VECTOR, field(group, _ROWS), field(group, _SINK), field(group, _SLOTS)
    first = max(rows - window, sink)
    vectors = _tiles(field(group, _MARKS))
    den = scratch
    masses = den + 4 * VECTOR
    queries_at = masses + VECTOR
    acc = queries_at + queries * wide
    tops = acc + queries * wide
    scores = tops + queries * VECTOR
    weights = scores + queries * 2 * vectors * VECTOR
    stride = (_tiles(sink) + _tiles(slots) + 1) * VECTOR
    for n in range(queries):
        head = field(heads, done + n)
        copy_row(queries_at + n * wide, q + head * q_head_bytes, head_dim, blocks * LANES)
    clear(acc, queries * blocks)
    if is_far:
        far_stride = 2 * vectors * VECTOR
        score_tiles(_segment(group, _MARK_ROWS), _F32, _FIRST, _FIRST, vectors, blocks, queries_at, wide, scale, scores,
                    far_stride, queries)  # fmt: skip
        for n in range(queries):
            mass = _far_part(group, done + n, scores + n * far_stride, far_stride, acc + n * wide, blocks,
                             tops + n * VECTOR, den)  # fmt: skip
            store_f32(masses + n * 4, mass)
            store_f32(masses - 2 * VECTOR + n * 4, load_f32(den))
    for n in range(queries):
        start_top(tops + n * VECTOR)
    at = weights
    for part in range(3):
        lo, hi = _span(part, first, rows, sink, slots)
        if lo < hi:
            segment = _segment(group, _SINK_ROWS if part == 0 else _RING_ROWS)
            tile = lo // LANES
            tiles = _tiles(hi) - tile
            score_tiles(segment, _F32, _FIRST, tile, tiles, blocks, queries_at, wide, scale, at, stride, queries)
            for n in range(queries):
                mask_scores(at + n * stride, tiles, tile * LANES, lo, hi, _NO_CAP, tops + n * VECTOR)
            at += tiles * VECTOR
    for n in range(queries):
        level, mass = 0, _NO_CAP
        if is_far:
            mass = load_f32(masses + n * 4)
            if mass > _NO_CAP:
                level = masses - 2 * VECTOR + n * 4
        to_weights(weights + n * stride, (at - weights) // VECTOR, tops + n * VECTOR, level, den + n * 4)
        if level != 0:
            share = load_f32(den + n * 4)
            store_f32(den + n * 4, share * mass)
            scale_vectors(acc + n * wide, blocks, share)
    at = weights
    for part in range(3):
        lo, hi = _span(part, first, rows, sink, slots)
        if lo < hi:
            segment = _segment(group, _SINK_ROWS if part == 0 else _RING_ROWS)
            weigh_rows(segment, _F32, _FIRST, lo, hi - lo, blocks, at + lo % LANES * 4, stride, acc, wide, den, queries)
            at += (_tiles(hi) - lo // LANES) * VECTOR
    for n in range(queries):
        if load_f32(den + n * 4) < _LEAST_DENOMINATOR:
            store_f32(den + n * 4, _LEAST_DENOMINATOR)
        divide_row(acc + n * wide, out + field(heads, done + n) * out_head_bytes, head_dim, den + n * 4)


@compiled
def step_group(group, num_heads, key, key_step, value, q, q_head_bytes, out, out_head_bytes, head_dim, blocks, scale):
    """One row: `key` (f32, `key_step` bytes apart) and `value` f32 [padded_dim] join, then every head of q reads.

    q and out: f32 [head_dim] a head. Scratch is the group's own.
    """
    scratch = field(group, _SCRATCH)
    _insert(group, key, key_step, value, blocks, scale, scratch)
    heads, far_heads = field(group, _HEADS), field(group, _FAR_HEADS)
    done = 0
    while done < num_heads:
        is_far = done < far_heads
        end = far_heads if is_far else num_heads
        window = field(group, _WINDOW) if is_far else field(group, _RING)
        queries = min(end - done, MAX_QUERIES)
        _read(group, done, queries, is_far, window, heads, q, q_head_bytes, out, out_head_bytes, head_dim, blocks,
              scale, scratch)  # fmt: skip
        done += queries
