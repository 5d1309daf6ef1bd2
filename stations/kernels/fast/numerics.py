"""The numerics id: what every kernel that a station holds makes of a fixed input, compared with the repository's.

Each weight kind has a digest: blake3 over the bits of a small seeded layer (every role, several rows, a second pass
over the cache) and head whose matrices are of that kind; the kind of the embedding has one of its lookup. A station
checks those of its own kinds. If all equal `expected.py`, its id is the digest of that whole table, so stations of
other roles and kinds have the same; otherwise the id shows what was found instead, and no other station's equals it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from ...kv.layer_cache import LayerKvCache
from ...layout import PackedMatrix, packed_bytes, weight_format
from ...models.card import ModelCard, Rope, RopeScaling
from ...models.roles import RoleSpan
from ..base import Span
from .expected import EXPECTED, EXPECTED_INT8

if TYPE_CHECKING:
    from .cache import CompileCache
    from .loader import LoadedUnits

F32 = npt.NDArray[np.float32]

_CARD = ModelCard(
    name="numerics", architecture="llama", num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=2, head_dim=64,
    ffn_size=512, vocab_size=64, context_length=64, rms_eps=1e-5,
    rope=Rope(theta=10000.0, dim=64, scaling=RopeScaling(8.0, 1.0, 4.0, 32)), tied_embeddings=False, bos_id=None,
    eos_ids=(), add_bos=False,
)  # fmt: skip
_FIRST_ROWS, _NEXT_ROWS = 19, 1  # tiles of every size; a row that sees more than a tile of keys
_SHAPES = {"qkv": (512, 256), "output": (256, 256), "gate_up": (1024, 256), "down": (256, 512), "head": (64, 256)}


class SeededWeights:
    """A layer, head and embedding of one weight kind, made from hashes: the same bytes everywhere."""

    card = _CARD

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def names(self, role: str, layer: int) -> tuple[str, ...]:
        return {"attn": ("norm1", "qkv", "output", "norm2"), "gate_up": ("norm2", "gate_up")}.get(role, ())

    def norm(self, role: str, layer: int, name: str) -> F32:
        return seeded_values(f"norm {name}", _CARD.hidden_size) + np.float32(1)

    def matrix(self, role: str, layer: int, name: str) -> PackedMatrix:
        return seeded_matrix(self._kind, *_SHAPES.get(name, (_CARD.vocab_size, _CARD.hidden_size)), name)


def seeded_values(name: str, count: int) -> F32:
    """`count` f32 in steps of 1/256 between −½ and ½."""
    raw = np.frombuffer(blake3(name.encode()).digest(count), np.int8)
    return raw.astype(np.float32) * np.float32(1 / 256)


def seeded_matrix(kind: str, rows: int, cols: int, name: str) -> PackedMatrix:
    """Any codes, scales of the size that makes outputs as large as inputs."""
    fmt = weight_format(kind)
    size = packed_bytes(kind, rows, cols)
    if fmt.code_bits >= 16:
        values = seeded_values(f"{kind} {name}", size * 8 // fmt.code_bits) * np.float32(0.25)
        if kind == "bf16":
            return PackedMatrix(
                kind, rows, cols, (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
            )
        return PackedMatrix(kind, rows, cols, values.astype(np.float16 if kind == "f16" else np.float32).view(np.uint8))
    data = np.frombuffer(bytearray(blake3(f"{kind} {name}".encode()).digest(size)), np.uint8)
    units = data.reshape(-1, fmt.unit_bytes)
    step = 0.25 / (1 << fmt.code_bits) / (32 if fmt.unit_blocks > 1 else 1)
    halves = units[:, -fmt.tail_bytes :] if fmt.unit_blocks > 1 else units[:, fmt.scale_offset :]
    raw = halves.reshape(-1, 2)[:, 0].view(np.int8).astype(np.float32)
    halves[:] = (raw * np.float32(step / 64)).astype(np.float16).view(np.uint8).reshape(halves.shape)
    return PackedMatrix(kind, rows, cols, data)


def digest_layer(kind: str, units: LoadedUnits, cache: CompileCache, *, is_int8: bool = False) -> str:
    """The digest of the product kernels of a kind, with all else that a layer and head are made of."""
    from .backend import FastKernels

    roles = [RoleSpan("block", 0, 0), RoleSpan("head")]
    kernels = FastKernels(SeededWeights(kind), roles, 1, cache, units, is_int8=is_int8)
    digest = blake3()
    kv = LayerKvCache(_CARD.num_kv_heads, _CARD.head_dim, capacity=_FIRST_ROWS + _NEXT_ROWS)
    first = 0
    for rows in (_FIRST_ROWS, _NEXT_ROWS):
        x = seeded_values(f"x {rows}", rows * _CARD.hidden_size).reshape(rows, -1) * np.float32(8)
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
    rows = kernels.embed(np.arange(_CARD.vocab_size, dtype=np.uint32), 0, 1)
    return blake3(np.ascontiguousarray(rows, "<f4").tobytes()).hexdigest()


def found_digests(names: Iterable[str], units: LoadedUnits, cache: CompileCache) -> dict[str, str]:
    """Digests of the product and lookup units among `names`."""
    found = {}
    for name in names:
        family, _, kind = name.partition(".")
        if family in ("product", "int8"):
            found[name] = digest_layer(kind, units, cache, is_int8=family == "int8")
        elif family == "lookup":
            found[name] = digest_lookup(kind, units, cache)
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
