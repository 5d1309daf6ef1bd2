"""What a kernel set must offer. Arrays are C-contiguous f32 [rows, width]; nothing here knows sessions or sockets.

Both sets (`reference`: numpy; `fast`: numba on packed weights) implement `Backend`. A row's result never depends on
the rows beside it (`docs/numerics.md`), so callers may batch rows of any sessions into one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..kv.layer_cache import LayerKvCache

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


class Span(NamedTuple):
    """Consecutive rows of one sequence inside a batch: `rows` rows, the first at position `first`.

    Their K and V are appended to `cache` (whose next position is `first`); row i attends to first + i + 1 rows.
    """

    cache: LayerKvCache
    first: int
    rows: int


class RowShape(NamedTuple):
    """Where things stand in the messages of a row, in bytes: its values, (settled, first) and the hop count, to which
    `crossing` is added on the way."""

    data: int
    place: int
    hop: int
    crossing: int


class PreparedRow(Protocol):
    """Rows of one sequence at one layer of a role, a row a call, from messages to messages.

    `run(message, None)` computes from the message of the role's input; of down from u's and h's. `took_ns[0]` is then
    how long the kernel took, −1 when an output is not finite or the token unknown; nothing else has changed in that
    case. `frames`: a whole message for each output, written over by the next run. Only rows at positions below `limit`,
    only while nothing else is computed by the backend, and between `reserve` and `commit` of the cache.
    """

    @property
    def frames(self) -> Sequence[memoryview]: ...
    @property
    def limit(self) -> int: ...
    @property
    def run(self) -> Callable[[bytes, bytes | None], object]: ...
    @property
    def took_ns(self) -> memoryview: ...


@runtime_checkable
class PreparesRows(Protocol):
    """A kernel set that can."""

    def prepare_row(
        self, role: str, layer: int, cache: LayerKvCache | None, heads: Sequence[bytes], shape: RowShape
    ) -> PreparedRow | None:
        """`heads`: what stands before the values in each output's message. None where general calls are needed.

        Roles attn, gate_up and down, and embed and head that are not cut into parts.
        """
        ...


class Backend(Protocol):
    """Kernels over the weights of one station's roles. Raises UnsupportedError for a role it was not given."""

    name: str  # "reference" or "fast"
    numerics_id: str  # blake3 of the bits of every kernel on a fixed input, hex

    def embed(self, ids: U32, part: int, parts: int) -> F32:
        """[S] → [S, hidden]: rows of shard `part`, +0.0 where the id is another shard's; a sum of parts is exact."""
        ...

    def attn(self, layer: int, x: F32, spans: Sequence[Span]) -> tuple[F32, F32]:
        """x [S, H] → h = x + attn(norm₁ x), n = norm₂ h, both [S, H]. Appends to the spans' caches."""
        ...

    def attn_delta(self, layer: int, x: F32, spans: Sequence[Span]) -> F32:
        """x [S, H] → a = attn(norm₁ x) [S, H], without the residual. Appends to the spans' caches."""
        ...

    def add_norm(self, layer: int, x: F32, a: F32) -> tuple[F32, F32]:
        """x, a [S, H] → h = x + a, n = norm₂ h, with the roles attn or gate_up.

        `attn(l, x, spans)` is `add_norm(l, x, attn_delta(l, x, spans))`, bit for bit.
        """
        ...

    def norm2(self, layer: int, x: F32) -> F32:
        """x [S, H] → norm₂ x [S, H], with the roles attn or gate_up."""
        ...

    def gate_up(self, layer: int, n: F32) -> F32:
        """n [S, H] → u = silu(n W_gate) ⊙ (n W_up) [S, F]."""
        ...

    def down(self, layer: int, h: F32, u: F32) -> F32:
        """h [S, H], u [S, F] → h + u W_down [S, H], the product summed in 8 fixed segments by a fixed binary tree."""
        ...

    def down_delta(self, layer: int, u: F32) -> F32:
        """u [S, F] → f = u W_down [S, H]: `down(l, h, u)` is `add_rows(h, f)`, bit for bit."""
        ...

    def ffn(self, layer: int, n: F32, part: int, parts: int) -> F32:
        """n [S, H] → f [S, H]: the share of slice `part` of `parts` (2, 4, 8) in u W_down, a branch of down's tree.

        h + the same tree over all slices has the bits of `down` on `gate_up` (`docs/numerics.md`).
        """
        ...

    def block(self, lo: int, hi: int, x: F32, spans: Sequence[Sequence[Span]]) -> F32:
        """Layers lo..hi (both included); spans[l - lo] are the spans of layer l. x [S, H] → x' [S, H]."""
        ...

    def head(self, x: F32, part: int, parts: int) -> F32:
        """x [S, H] → final norm and logits [S, V_part] of the shard's vocabulary range (`vocab_range`)."""
        ...


def add_rows(left: F32, right: F32) -> F32:
    """left + right, both [S, H]: the additions of the residual stream outside compiled code, the same bits.

    Infinity makes no warning: it is found where rows are checked.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.add(left, right, dtype=np.float32)


def vocab_range(vocab_size: int, part: int, parts: int) -> tuple[int, int]:
    """Rows [lo, hi) of the vocabulary that shard `part` of `parts` holds, on boundaries of 16 rows (a packed group)."""
    groups = -(-vocab_size // 16)
    lo, hi = groups * part // parts * 16, groups * (part + 1) // parts * 16
    return min(lo, vocab_size), min(hi, vocab_size)
