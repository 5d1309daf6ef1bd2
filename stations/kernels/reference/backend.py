"""The reference kernels: the model's formulas in numpy on f32 weights. The oracle; speed is no aim.

BLAS gives a row other last bits beside other rows, so results are `cut: bounded`; `row_by_row` runs every row alone,
which makes them independent of the batch where the fast kernels cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from ...layout import BLOCK_COLS, NUM_SEGMENTS, PackedMatrix, ffn_slice, segment_bounds, unpack
from ...models.roles import RoleSpan
from ..base import F32, U32, Span, add_rows, vocab_range
from ..rotary import RotaryTable
from ..weights import GivenRoles, Weights, gate_up_parts, qkv_parts

_ID_SEED = 20240117


class ReferenceBackend:
    """Kernels of the given roles over f32 weights, unpacked when a layer is first used."""

    name = "reference"

    def __init__(self, weights: Weights, roles: Iterable[RoleSpan], row_by_row: bool = False) -> None:
        self._weights = weights
        self.card = weights.card
        self._roles = GivenRoles(roles)
        self._row_by_row = row_by_row
        self._rotary = RotaryTable(self.card.rope)
        self._unpacked: dict[tuple[str, int, str], F32] = {}
        self.numerics_id = self._numerics_id()

    def embed(self, ids: U32, part: int, parts: int) -> F32:
        """ids [S] → [S, hidden]; zeros where the id lies in another shard."""
        self._roles.require("embed")
        lo, hi = vocab_range(self.card.vocab_size, part, parts)
        out = np.zeros((len(ids), self.card.hidden_size), np.float32)
        table = self._weights.matrix("embed", 0, "embedding")
        for row, token in enumerate(ids.tolist()):
            if lo <= token < hi:
                out[row] = unpack(table, slice(token, token + 1))[0]
        return np.add(out, np.float32(0), dtype=np.float32)  # no −0, so that a sum of shards is exact

    def attn(self, layer: int, x: F32, spans: Sequence[Span]) -> tuple[F32, F32]:
        """x [S, H] → h = x + attn(norm₁ x), n = norm₂ h."""
        return self.add_norm(layer, x, self.attn_delta(layer, x, spans))

    def add_norm(self, layer: int, x: F32, a: F32) -> tuple[F32, F32]:
        """x, a [S, H] → h = x + a, n = norm₂ h."""
        h = add_rows(x, a)
        return h, self.norm2(layer, h)

    def norm2(self, layer: int, x: F32) -> F32:
        """x [S, H] → norm₂ x."""
        self._roles.require_one_of(("attn", "gate_up"), layer)
        return self._norm(x, "attn" if ("attn", layer) in self._roles.pairs else "gate_up", layer, "norm2")

    def attn_delta(self, layer: int, x: F32, spans: Sequence[Span]) -> F32:
        """x [S, H] → a = attn(norm₁ x) [S, H]."""
        self._roles.require("attn", layer)
        card = self.card
        n = self._norm(x, "attn", layer, "norm1")
        q, k, v = (self._product(n, w) for w in self._matrices(layer, "qkv"))
        positions = np.concatenate([np.arange(s.first, s.first + s.rows) for s in spans])
        q = self._rotate(q.reshape(-1, card.num_heads, card.head_dim), positions)
        k = self._rotate(k.reshape(-1, card.num_kv_heads, card.head_dim), positions)
        heads = np.zeros((len(x), card.num_heads * card.head_dim), np.float32)
        row = 0
        for span in spans:
            at = slice(row, row + span.rows)
            row += span.rows
            if span.cache.o1_sealed:
                for i in range(at.start, at.stop):
                    heads[i] = span.cache.o1_step(q[i], k[i], v[i], card.num_heads)
                continue
            first_row = span.cache.seq_len
            span.cache.append(k[at], v[at])
            span.cache.o1_push_q(q[at].reshape(span.rows, -1))
            span.cache.attend_chunk(
                q[at], first_row, card.num_heads, heads[at], scale=card.attention_scale, keep_importance=False
            )
        return self._product(heads, self._matrix("attn", layer, "output"))

    def gate_up(self, layer: int, n: F32) -> F32:
        """n [S, H] → silu(n W_gate) ⊙ (n W_up)."""
        self._roles.require("gate_up", layer)
        return self._swiglu(layer, n, 0, self.card.ffn_size)

    def down(self, layer: int, h: F32, u: F32) -> F32:
        """h [S, H], u [S, F] → h + u W_down."""
        return add_rows(h, self.down_delta(layer, u))

    def down_delta(self, layer: int, u: F32) -> F32:
        """u [S, F] → f = u W_down."""
        self._roles.require("down", layer)
        return self._down_sum(layer, u, 0, NUM_SEGMENTS)

    def ffn(self, layer: int, n: F32, part: int, parts: int) -> F32:
        """n [S, H] → the share of slice `part` of `parts` in u W_down [S, H]."""
        self._roles.require_slice(layer, part, parts)
        u = self._swiglu(layer, n, *ffn_slice(self.card.ffn_size, part, parts))
        each = NUM_SEGMENTS // parts
        return self._down_sum(layer, u, part * each, (part + 1) * each)

    def block(self, lo: int, hi: int, x: F32, spans: Sequence[Sequence[Span]]) -> F32:
        """Layers lo..hi, both included."""
        for layer, layer_spans in zip(range(lo, hi + 1), spans, strict=True):
            h, n = self.attn(layer, x, layer_spans)
            x = self.down(layer, h, self.gate_up(layer, n))
        return x

    def head(self, x: F32, part: int, parts: int) -> F32:
        """x [S, H] → logits [S, V_part]."""
        self._roles.require("head")
        lo, hi = vocab_range(self.card.vocab_size, part, parts)
        return self._product(self._norm(x, "head", 0, "final_norm"), self._matrix("head", 0, "head")[lo:hi])

    def _swiglu(self, layer: int, n: F32, lo: int, hi: int) -> F32:
        """u, its columns [lo, hi)."""
        gate, up = (self._product(n, w[lo:hi]) for w in self._matrices(layer, "gate_up"))
        with np.errstate(over="ignore"):
            silu = gate / (np.float32(1) + np.exp(-gate))
        return np.multiply(silu, up, dtype=np.float32)

    def _down_sum(self, layer: int, u: F32, first: int, end: int) -> F32:
        """Segments [first, end) of u W_down, whose columns `u` holds, added by the fixed tree."""
        weights = self._matrix("down", layer, "down")
        bounds = [block * BLOCK_COLS for block in segment_bounds(-(-self.card.ffn_size // BLOCK_COLS))]
        start = bounds[first]
        sums = [
            self._product(u[:, lo - start : hi - start], weights[:, lo:hi])
            for lo, hi in pairwise(bounds[first : end + 1])
        ]
        while len(sums) > 1:
            sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
        return sums[0]

    def _matrix(self, role: str, layer: int, name: str) -> F32:
        key = (role, layer, name)
        if key not in self._unpacked:
            self._unpacked[key] = unpack(self._weights.matrix(role, layer, name))
        return self._unpacked[key]

    def _matrices(self, layer: int, name: str) -> list[F32]:
        """The parts of q|k|v or gate|up, unpacked."""
        role = "attn" if name == "qkv" else name
        parts: list[PackedMatrix] = []
        values = []
        for i in range(3 if name == "qkv" else 2):
            key = (role, layer, f"{name}.{i}")
            if key not in self._unpacked:
                parts = parts or (qkv_parts if name == "qkv" else gate_up_parts)(self._weights, layer)
                self._unpacked[key] = unpack(parts[i])
            values.append(self._unpacked[key])
        return values

    def _norm(self, x: F32, role: str, layer: int, name: str) -> F32:
        mean = np.mean(x * x, axis=1, keepdims=True, dtype=np.float32)
        root = np.sqrt(mean + np.float32(self.card.rms_eps))
        return np.multiply(x / root, self._weights.norm(role, layer, name), dtype=np.float32)

    def _product(self, x: F32, weights: F32) -> F32:
        if self._row_by_row:
            return np.stack([weights @ row for row in np.ascontiguousarray(x)])
        return x @ weights.T

    def _rotate(self, x: F32, positions: npt.NDArray[np.int64]) -> F32:
        """x [S, heads, head_dim]: pairs (2i, 2i + 1) of the first `rope.dim` dims turn by position · frequency i."""
        dim = self.card.rope.dim
        table = self._rotary.upto(int(positions.max()) + 1)[positions][:, None, :]
        cos, sin = table[..., : dim // 2], table[..., dim // 2 :]
        even, odd = x[..., 0:dim:2], x[..., 1:dim:2]
        out = x.copy()
        out[..., 0:dim:2] = even * cos - odd * sin
        out[..., 1:dim:2] = even * sin + odd * cos
        return out

    def _numerics_id(self) -> str:
        """blake3 of products, a norm's root, an exp and rotary angles of this machine's numpy on a fixed input."""
        rng = np.random.default_rng(_ID_SEED)
        x, w = rng.standard_normal((3, 96), np.float32), rng.standard_normal((64, 96), np.float32)
        digest = blake3(bytes([self._row_by_row]))
        for values in (self._product(x, w), np.sqrt(np.mean(x * x, axis=1)), np.exp(x), self._rotary.upto(8)[:8]):
            digest.update(np.ascontiguousarray(values, np.float32).tobytes())
        return digest.hexdigest()
