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


class _Layer:
    __slots__ = ("rows", "view")

    def __init__(self, cache: LayerKvCache) -> None:
        self.rows: dict[int, DraftRow] = {}  # by position
        self.view = DraftView(cache.num_kv_heads, cache.head_dim, cache.mode)


class Scratch:
    """Rows by layer and position; `cleared` at every new epoch and at the end."""

    __slots__ = ("_layers",)

    def __init__(self) -> None:
        self._layers: dict[int, _Layer] = {}

    def __len__(self) -> int:
        """Rows of the layer that holds most."""
        return max((len(layer.rows) for layer in self._layers.values()), default=0)

    def holds(self, layer: int, position: int) -> bool:
        """Has a draft computed that position here?"""
        held = self._layers.get(layer)
        return held is not None and position in held.rows

    def view(self, layer: int, position: int, cache: LayerKvCache) -> tuple[DraftView, int] | None:
        """What a draft at `position` sees of `layer`, and how many rows of it are scratch. None where a row is missing.

        Raises KvFormError or RollbackError for a cache whose rows below the position cannot be read as rows.
        """
        first = min(cache.pos_len, position)
        held = self._layers.get(layer)
        if held is None:
            held = self._layers[layer] = _Layer(cache)
        if position - first > SCRATCH_ROWS or not all(j in held.rows for j in range(first, position)):
            return None
        held.view.show(cache, position, [held.rows[j] for j in range(first, position)])
        return held.view, position - first

    def keep(self, layer: int, position: int) -> None:
        """Store the row that a draft has appended to its view."""
        held = self._layers[layer]
        held.rows[position] = held.view.newest()
        while len(held.rows) > SCRATCH_ROWS:
            del held.rows[min(held.rows)]

    def clear(self) -> None:
        for held in self._layers.values():
            held.rows.clear()
