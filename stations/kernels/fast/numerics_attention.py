"""The digest of attention: rows in every form they are kept in, what narrows a row's sight, a sealed O(1) group.

Rows are stored by the plain version; compiled code attends the newest of them and gives their masses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from ...kv.layer_cache import LayerKvCache
from ...kv.memory import aligned_zeros, padded
from ...kv.nystrom import OverlayShape
from ...kv.overlay_group import GroupRows, OverlayGroup
from ...kv.streams import F32
from .limits import attention_scratch_bytes
from .loader import LoadedUnits
from .overlay import CompiledOverlay
from .seeded import seeded_values
from .units import ATTEND

_KV_HEADS, _HEADS, _DIM = 2, 3, 80  # query heads of a KV head; a dim that fills neither four vectors nor two groups
_ROWS, _NEWEST = 139, 19  # rows stored; those that attend: no form changes among them, each has before
_FORMS = (("f32", None), ("f16", None), ("q8", 0), ("q8", 20), ("q8k", 0), ("q8v", 20), ("q4", 40))
_SIGHTS = ((0, 0.0, False), (50, 3.0, True))  # window, softcap, learned sinks
_SHAPE = OverlayShape(landmarks=8, window=24, sink=3)


def digest_attention(units: LoadedUnits) -> str:
    """blake3 of the bits that the units for attention make of seeded rows, hex."""
    digest = blake3()
    for mode, recent in _FORMS:
        for window, softcap, has_sinks in _SIGHTS:
            cache = LayerKvCache(_KV_HEADS, _DIM, mode, _ROWS, exact_recent=recent)
            sinks = _seeded("sinks", _KV_HEADS * _HEADS) if has_sinks else None
            cache.reading.set(window=window, softcap=softcap, sinks=sinks, keeps_mass=True)
            for values in _attended(units, cache):
                digest.update(np.ascontiguousarray(values, "<f4").tobytes())
    digest.update(np.ascontiguousarray(_sealed(units), "<f4").tobytes())
    return digest.hexdigest()


def _seeded(name: str, *shape: int) -> F32:
    return seeded_values(f"attention {name}", int(np.prod(shape))).reshape(shape) * np.float32(3)


def _attended(units: LoadedUnits, cache: LayerKvCache) -> Iterator[F32]:
    """Outputs of the newest rows, KV head by KV head, and the masses that they gave."""
    cache.append(_seeded("k", _ROWS, _KV_HEADS, _DIM), _seeded("v", _ROWS, _KV_HEADS, _DIM))
    first = _ROWS - _NEWEST
    cache.truncate_to(first)  # these rows are stored; attention counts what a row sees from the committed ones
    q = _seeded("q", _NEWEST, _KV_HEADS * _HEADS, _DIM)
    out, scale = np.empty_like(q), np.array([_DIM**-0.5], np.float32)
    scratch = aligned_zeros((attention_scratch_bytes(_ROWS, padded(_DIM)),), np.uint8)
    attend, table, head_bytes = units.function(ATTEND), cache.reserve(_NEWEST), _HEADS * _DIM * 4
    for head in range(_KV_HEADS):
        at = head * head_bytes
        attend(table, head, _HEADS, q.ctypes.data + at, q.strides[0], out.ctypes.data + at, out.strides[0], _NEWEST,
               first + 1, scale.ctypes.data, scratch.ctypes.data)  # fmt: skip
    yield out
    yield cache.reading.end_pass()[:, :_ROWS]


def _sealed(units: LoadedUnits) -> F32:
    """Rows of a sealed group, one head without a far field, f32 [rows, heads, dim]."""
    kernels, uses_far = CompiledOverlay(units), np.array([True, False, True])
    q = np.ascontiguousarray(_seeded("q", _ROWS, _HEADS, _DIM).swapaxes(0, 1))
    k, v = _seeded("k", _ROWS, _DIM), _seeded("v", _ROWS, _DIM)
    first = _ROWS - _NEWEST
    group = OverlayGroup(_SHAPE, GroupRows(q[:, :first], k[:first], v[:first]), _DIM**-0.5, uses_far, kernels)
    rows = [kernels.step(group, np.ascontiguousarray(q[:, i]), k[i], v[i]) for i in range(first, _ROWS)]
    return np.stack(rows)
