"""Weights copied out of their files into memory of this process in large pages: read once a token, at memory's speed.

A row alone waits for memory. A file's pages are 4 KB, each to be looked up, and prefetching ends at each; in pages of
2 MB the 8-bit set decodes a quarter faster (`benches/RESULTS.md`).
Each file is unmapped as soon as it is copied, so the process holds no more memory than with the file's own pages,
which the system may then use for other things. Where memory is short weights stay mapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ...kv.memory import U8, large_zeros
from ...layout import PackedMatrix
from ...models.card import ModelCard
from ...models.roles import RoleSpan, layer_roles
from ..weights import Weights

F32 = npt.NDArray[np.float32]

ARENA_BYTES = 32 << 20  # reserved at a time; what is not written takes no memory
_LINE = 64
_SHARE = 0.5  # of the memory that is available, at most


@runtime_checkable
class MappedWeights(Weights, Protocol):
    """Weights that lie in files; `present_bytes` of all that are on this machine."""

    @property
    def present_bytes(self) -> int: ...

    def release(self, role: str, layer: int) -> None:
        """Unmap the file of a role and layer once nothing views it; it is mapped again when it is asked for."""
        ...


class ResidentWeights:
    """`Weights` of another, copied where a role is here as a whole.

    Shards and slices read a part of their files' matrices, and an embedding few rows of its own: these stay mapped,
    but for the embedding that is the head as well.
    """

    def __init__(self, weights: MappedWeights, roles: Iterable[RoleSpan]) -> None:
        self._weights = weights
        self._whole = layer_roles(span for span in roles if span.parts == 1 and span.role != "embed")
        self._copies: dict[tuple[str, int, str], PackedMatrix] = {}
        self._arena: U8 = np.zeros(0, np.uint8)
        self._used = 0

    @property
    def card(self) -> ModelCard:
        return self._weights.card

    def names(self, role: str, layer: int) -> tuple[str, ...]:
        return self._weights.names(role, layer)

    def norm(self, role: str, layer: int, name: str) -> F32:
        return self._weights.norm(role, layer, name)

    def matrix(self, role: str, layer: int, name: str) -> PackedMatrix:
        """The matrix, as `Weights.matrix`; its data is read-only."""
        if role == "embed" and self.card.tied_embeddings and ("head", 0, "head") in self._copies:
            return self._copies["head", 0, "head"]
        if (role, layer) not in self._whole:
            return self._weights.matrix(role, layer, name)
        if (role, layer, name) not in self._copies:
            mapped = self._weights.matrix(role, layer, name)
            self._copies[role, layer, name] = PackedMatrix(
                mapped.kind, mapped.rows, mapped.cols, self._copied(mapped.data)
            )
            del mapped
            self._weights.release("embed" if role == "head" and self.card.tied_embeddings else role, layer)
        return self._copies[role, layer, name]

    def _copied(self, data: U8) -> U8:
        if self._used + data.nbytes > len(self._arena):
            self._arena, self._used = large_zeros(max(data.nbytes, ARENA_BYTES)), 0
        copy = self._arena[self._used : self._used + data.nbytes]
        copy[:] = data
        copy.setflags(write=False)
        self._used += -(-data.nbytes // _LINE) * _LINE
        return copy


def resident(weights: Weights, roles: Iterable[RoleSpan]) -> Weights:
    """`weights`, to be copied as they are asked for if they lie in files and there is room; else as they are.

    Room is asked for all of the model that is on this machine: its other parts are other stations', which may be
    starting just now and find the same memory available.
    """
    if not isinstance(weights, MappedWeights):
        return weights
    available = available_bytes()
    has_room = available is not None and weights.present_bytes <= _SHARE * available
    return ResidentWeights(weights, roles) if has_room else weights


def available_bytes() -> int | None:
    """Memory that programs may take without others being swapped out; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
