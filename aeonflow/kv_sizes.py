"""Bytes of KV: what a session takes on a station's layers, by its options and the model's sizes.

The one count that stations reserve memory by and hosts plan with. Knows no cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .kv_options import CODED_GROUP, EXACT_SINKS, MASS_ROWS, UNDO_ROWS, KvOptions, OverlayOptions

_MASS_SUMS = 3  # of attention mass a stored row: all, of the newest rows, of those before
_OPEN_ROWS = 3 * CODED_GROUP  # rows that wait, exact, until their group is coded


class KvShape(NamedTuple):
    """The sizes of a model's layers; `windows` that it declares for them (0: none; empty: no layer has one)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: Sequence[int] = ()

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0


def session_bytes(options: KvOptions, layers: Iterable[int], positions: int, shape: KvShape) -> int:
    """Bytes that `layers` take when a session is `positions` rows long."""
    by_kind: dict[KvOptions, int] = {}  # layers of one kind are alike
    total = 0
    for layer in layers:
        own = options.on_layer(layer, shape.window(layer))
        if own not in by_kind:
            by_kind[own] = _kind_bytes(own, positions, shape)
        total += by_kind[own]
    return total


def _kind_bytes(options: KvOptions, positions: int, shape: KvShape) -> int:
    if options.o1 is None:
        return layer_bytes(options, positions, shape.num_kv_heads, shape.head_dim)
    collected = layer_bytes(options, min(positions, options.o1.boundary), shape.num_kv_heads, shape.head_dim)
    return collected + overlay_bytes(options.o1, shape.num_heads, shape.num_kv_heads, shape.head_dim)


def layer_bytes(options: KvOptions, positions: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of one layer's K and V, and of what belongs to them, when the session is `positions` rows long. Of a layer
    with an overlay: of the rows it starts with."""
    if options.max_rows:
        positions = min(positions, options.max_rows)
    if options.window:
        positions = min(positions, 2 * options.window + 1 + options.recent_rows + EXACT_SINKS + _OPEN_ROWS)
    mass = 4 * positions * (_MASS_SUMS + MASS_ROWS) if options.keeps_mass else 0  # MASS_ROWS of them in a prefill only
    groups = -(-head_dim // CODED_GROUP)
    exact = 4 * head_dim
    coded_k, coded_v = head_dim + 4 * groups, head_dim + 4
    row = {
        "f32": 2 * exact,
        "f16": exact,
        "q8": coded_k + coded_v,
        "q8k": coded_k + exact,
        "q8v": exact + coded_v,
        "q4": (head_dim + 1) // 2 + -(-4 * head_dim // CODED_GROUP) + (head_dim + 1) // 2 + 4 * groups,
    }[options.kv]
    num_exact = 0
    if options.kv == "q4" or options.recent_rows:
        num_exact = min(options.recent_rows + EXACT_SINKS + _OPEN_ROWS, positions)
    columns = 2 * exact if options.kv.startswith("q8") else 0
    return num_kv_heads * ((positions - num_exact) * row + num_exact * 2 * exact + columns) + mass


def overlay_bytes(o1: OverlayOptions, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of an O(1) layer beside the rows it starts with: queries kept until it is sealed, what it is then, and what
    lets rows since the last barrier be taken back: sums twice, rows beyond the window."""
    undo = num_kv_heads * 2 * UNDO_ROWS * head_dim + num_heads * (o1.m * head_dim + 2 * o1.m)
    trace = o1.boundary * num_heads * head_dim
    return 4 * (trace + undo) + sealed_bytes(o1, num_heads, num_kv_heads, head_dim)


def sealed_bytes(o1: OverlayOptions, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of a sealed O(1) layer at most: sinks, window, landmarks, and scratch a head. Heads that go without a far
    field give its bytes to the window."""
    per_kv = num_heads // num_kv_heads
    far = o1.m * head_dim + per_kv * (2 * o1.m * head_dim + 2 * o1.m + o1.m * o1.m)
    widest = o1.w + far // (2 * head_dim)
    scratch = per_kv * (o1.sink + widest + 3 * o1.m)
    return 4 * num_kv_heads * (2 * (o1.sink + o1.w) * head_dim + far + scratch)
