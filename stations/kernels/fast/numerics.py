"""The numerics id: what every kernel that a station holds makes of a fixed input, compared with the repository's.

Each weight kind has a digest: blake3 over the bits of a small seeded layer (every role, several rows, a second pass
over the cache) and head whose matrices are of that kind; the kind of the embedding has one of its lookup; attention has
one over rows in every form that sessions may ask for (`numerics_attention.py`). A station checks attention and its own
kinds. If all equal `expected.py`, its id is the digest of that whole table, so stations of other roles and kinds have
the same; otherwise the id shows what was found instead, and no other station's equals it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from ...kv.layer_cache import LayerKvCache
from ...models.roles import RoleSpan
from ..base import Span
from .expected import EXPECTED, EXPECTED_INT8
from .numerics_attention import digest_attention
from .seeded import CARD, SeededWeights, seeded_values
from .units import ATTEND

if TYPE_CHECKING:
    from .cache import CompileCache
    from .loader import LoadedUnits

_FIRST_ROWS, _NEXT_ROWS = 19, 1  # tiles of every size; a row that sees more than a tile of keys


def digest_layer(kind: str, units: LoadedUnits, cache: CompileCache, *, is_int8: bool = False) -> str:
    """The digest of the product kernels of a kind, with all else that a layer and head are made of."""
    from .backend import FastKernels

    roles = [RoleSpan("block", 0, 0), RoleSpan("head")]
    kernels = FastKernels(SeededWeights(kind), roles, 1, cache, units, is_int8=is_int8)
    digest = blake3()
    kv = LayerKvCache(CARD.num_kv_heads, CARD.head_dim, capacity=_FIRST_ROWS + _NEXT_ROWS)
    first = 0
    for rows in (_FIRST_ROWS, _NEXT_ROWS):
        x = seeded_values(f"x {rows}", rows * CARD.hidden_size).reshape(rows, -1) * np.float32(8)
        h, n = kernels.attn(0, x, [Span(kv, first, rows)])
        u = kernels.gate_up(0, n)
        out = kernels.down(0, h, u)
        for values in (h, n, u, out, kernels.head(out, 0, 1)):
            digest.update(np.ascontiguousarray(values, "<f4").tobytes())
        first += rows
    return digest.hexdigest()


def digest_lookup(kind: str, units: LoadedUnits, cache: CompileCache) -> str:
    """The digest of the embedding lookup of a kind."""
    from .backend import FastKernels

    kernels = FastKernels(SeededWeights(kind), [RoleSpan("embed")], 1, cache, units)
    rows = kernels.embed(np.arange(CARD.vocab_size, dtype=np.uint32), 0, 1)
    return blake3(np.ascontiguousarray(rows, "<f4").tobytes()).hexdigest()


def found_digests(names: Iterable[str], units: LoadedUnits, cache: CompileCache) -> dict[str, str]:
    """Digests of the product and lookup units among `names`, and of attention."""
    found = {}
    for name in names:
        family, _, kind = name.partition(".")
        if family in ("product", "int8"):
            found[name] = digest_layer(kind, units, cache, is_int8=family == "int8")
        elif family == "lookup":
            found[name] = digest_lookup(kind, units, cache)
        elif family == ATTEND:
            found[name] = digest_attention(units)
    return found


def numerics_id(units: LoadedUnits, cache: CompileCache, *, is_int8: bool = False) -> str:
    """The id of the units loaded, hex; `is_int8`: as those of the set `fast-int8`."""
    return identify(found_digests(units.names, units, cache), is_int8=is_int8)


def identify(found: dict[str, str], *, is_int8: bool = False) -> str:
    """The set's expected id if every digest found is the expected one, else one that tells what was found."""
    expected, expected_id = (EXPECTED | EXPECTED_INT8, EXPECTED_INT8_ID) if is_int8 else (EXPECTED, EXPECTED_ID)
    return expected_id if all(expected.get(name) == value for name, value in found.items()) else _combined(found)


def _combined(digests: dict[str, str]) -> str:
    return blake3("\n".join(f"{name} {digests[name]}" for name in sorted(digests)).encode()).hexdigest()


EXPECTED_ID = _combined(EXPECTED)
EXPECTED_INT8_ID = _combined(EXPECTED | EXPECTED_INT8)
