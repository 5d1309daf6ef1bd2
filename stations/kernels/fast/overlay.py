"""O(1) layers outside the compiled block: seals, and rows taken back, in the bits of the kernels that step them."""

from __future__ import annotations

import numpy as np

from ...kv.layer_cache import LayerKvCache
from ...kv.memory import LINE_BYTES, aligned_zeros, padded
from ...kv.overlay_group import GroupRows, OverlayGroup
from ..base import F32
from . import fields as f
from .limits import attention_scratch_bytes
from .loader import LoadedUnits
from .units import ATTEND, OVERLAY


class CompiledOverlay:
    """`OverlayKernels` of a backend."""

    def __init__(self, units: LoadedUnits) -> None:
        self._call = units.function(OVERLAY)
        self._attend = units.function(ATTEND)

    def fill(self, group: OverlayGroup, q: F32, prompt: GroupRows) -> None:
        k, v = (np.ascontiguousarray(rows, np.float32) for rows in prompt[1:])
        rows, dim = k.shape
        scale = np.array([group.scale], np.float32)
        scratch = aligned_zeros((_seal_scratch_bytes(group.shape.landmarks_at(rows), dim),), np.uint8)
        self._call(f.OVERLAY_FILL, group.record.ctypes.data, q.ctypes.data, 0, rows, 0, k.ctypes.data, v.ctypes.data,
                   dim, scale.ctypes.data, scratch.ctypes.data)  # fmt: skip

    def replay(self, group: OverlayGroup, first: int, upto: int) -> None:
        scale = np.array([group.scale], np.float32)
        self._call(f.OVERLAY_REPLAY, group.record.ctypes.data, 0, 0, upto - first, first, 0, 0, group.head_dim,
                   scale.ctypes.data, 0)  # fmt: skip

    def step(self, group: OverlayGroup, q: F32, k: F32, v: F32) -> F32:
        heads, dim = q.shape
        out, row = np.empty_like(q), aligned_zeros((2, padded(dim)), np.float32)
        row[0, :dim], row[1, :dim] = k, v
        scale = np.array([group.scale], np.float32)
        self._call(f.OVERLAY_STEP, group.record.ctypes.data, q.ctypes.data, out.ctypes.data, heads, 0,
                   row[0].ctypes.data, row[1].ctypes.data, dim, scale.ctypes.data, 0)  # fmt: skip
        return out

    def exact(self, prompt: GroupRows, first: int, scale: float) -> F32:
        cache = LayerKvCache(1, prompt.k.shape[1], capacity=len(prompt.k))
        cache.append(prompt.k, prompt.v)
        cache.truncate_to(first)  # these rows are stored; attention counts what a row sees from the committed ones
        q = np.ascontiguousarray(prompt.q[:, first:].swapaxes(0, 1))
        out, scales = np.empty_like(q), np.array([scale], np.float32)
        scratch = aligned_zeros((attention_scratch_bytes(len(prompt.k), padded(q.shape[2])),), np.uint8)
        rows, heads, _ = q.shape
        self._attend(cache.reserve(rows), 0, heads, q.ctypes.data, q.strides[0], out.ctypes.data, out.strides[0], rows,
                     first + 1, scales.ctypes.data, scratch.ctypes.data)  # fmt: skip
        return out


def _seal_scratch_bytes(marks: int, head_dim: int) -> int:
    """What FILL works in: three f64 matrices and a row of sums; two padded rows and weights of the marks."""
    doubles, floats = 3 * marks * marks + head_dim, 2 * padded(head_dim) + 2 * padded(marks)
    return 8 * doubles + 4 * floats + LINE_BYTES
