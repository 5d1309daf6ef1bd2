"""The scratch of a session's drafts: K and V of their own rows, a short ring a layer, never the cache.

A draft at position p reads canonical rows j < p where the layer has them, else the scratch row of that position, which
an earlier draft of the same epoch wrote (`docs/protocol.md`, *Drafts*). A new epoch clears it all, so no row of an
older one is ever read.
"""

from __future__ import annotations

from ..kv.draft_view import DraftRow, DraftView
from ..kv.layer_cache import LayerKvCache

DRAFT_WINDOW = 3  # positions that drafts may be ahead of the last true one; the host starts no more
SCRATCH_ROWS = DRAFT_WINDOW + 1  # a layer
MAX_SPARE_VIEWS = 16  # kept for the next batches; each has room for 64 rows of one layer


class Scratch:
    """Rows by layer and position; cleared at every new epoch and at the end."""

    __slots__ = ("_layers",)

    def __init__(self) -> None:
        self._layers: dict[int, dict[int, DraftRow]] = {}

    def __len__(self) -> int:
        """Rows of the layer that holds most."""
        return max((len(rows) for rows in self._layers.values()), default=0)

    def holds(self, layer: int, position: int) -> bool:
        """Has a draft computed that position here?"""
        return position in self._layers.get(layer, ())

    def rows(self, layer: int, first: int, position: int) -> list[DraftRow] | None:
        """The rows of positions [first, position); None where one is missing."""
        held = self._layers.get(layer, {})
        if position - first > SCRATCH_ROWS or not all(j in held for j in range(first, position)):
            return None
        return [held[j] for j in range(first, position)]

    def keep(self, layer: int, position: int, row: DraftRow) -> None:
        """Store the row of a draft, in place of the lowest position where the ring is full."""
        held = self._layers.setdefault(layer, {})
        held[position] = row
        while len(held) > SCRATCH_ROWS:
            del held[min(held)]

    def clear(self) -> None:
        """Forget all rows."""
        self._layers.clear()


class Views:
    """Views for the drafts of a batch, used again by later ones: as many as a batch ever had, not one a session."""

    def __init__(self) -> None:
        self._spare: dict[str, list[DraftView]] = {}

    def take(self, cache: LayerKvCache) -> DraftView:
        """One for a cache like this; it shows nothing yet."""
        spare = self._spare.get(cache.mode)
        return spare.pop() if spare else DraftView(cache.num_kv_heads, cache.head_dim, cache.mode)

    def give_back(self, view: DraftView) -> None:
        """Nobody reads it any more."""
        view.forget()
        spare = self._spare.setdefault(view.layer_mode, [])
        if len(spare) < MAX_SPARE_VIEWS:
            spare.append(view)
