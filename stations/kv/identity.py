"""The operator identity of a layer: what its rows mean, as one u64.

Two layers with equal identities may exchange records. Canonical JSON (sorted keys, no spaces, UTF-8) of everything
that changes the meaning of a row goes through blake3; the first 8 bytes, little-endian, are the identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from blake3 import blake3

Json = str | int | float | bool | None | list["Json"] | Mapping[str, "Json"]


def operator_identity(
    *, fingerprint: str, layer_kind: str, num_kv_heads: int, head_dim: int, rope: Mapping[str, Json], window: int = 0
) -> int:
    """u64. `fingerprint` is the model's, `layer_kind` "full", "ring", "recurrent"…, `window` in rows (0: none)."""
    meaning: dict[str, Json] = {
        "fingerprint": fingerprint,
        "head_dim": head_dim,
        "layer_kind": layer_kind,
        "num_kv_heads": num_kv_heads,
        "rope": rope,
        "window": window,
    }
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return int.from_bytes(blake3(text.encode()).digest()[:8], "little")
