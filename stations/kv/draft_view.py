"""A draft's sight of a layer: the canonical rows below its position, rows of earlier drafts, and room for its own.

The canonical rows are read where they lie and never written: what a draft adds goes to a segment of the view. Nothing
that a draft does can change the layer's rows, its form, its importance or its counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .errors import KvFormError
from .layer_cache import LayerKvCache
from .row_store import UNBOUNDED, RowPair
from .streams import F32, I64, ExactKeys, ExactValues

_NO_CHANGE = "the rows of a draft's view belong to the layer"


class DraftRow(NamedTuple):
    """K and V of one position of a draft, f32 [1, kv_heads, head_dim]; K is rotated."""

    k: F32
    v: F32


class _ViewRows:
    """Segments of a layer, and a pair of exact streams behind them: the storage of a view."""

    barriers = None

    def __init__(self, num_kv_heads: int, head_dim: int, mode: str) -> None:
        self._num_kv_heads = num_kv_heads
        self._shared: list[RowPair] = []
        self._shared_rows = 0
        dtype = np.float16 if mode == "f16" else np.float32
        self._own = RowPair(ExactKeys(num_kv_heads, head_dim, dtype), ExactValues(num_kv_heads, head_dim, dtype))

    @property
    def rows(self) -> int:
        return self._shared_rows + self._own.rows

    def share(self, pairs: list[RowPair]) -> None:
        """Stand behind these segments, with no rows of its own."""
        self._shared = pairs
        self._shared_rows = sum(pair.rows for pair in pairs)
        self._own.truncate(0)

    def segments(self) -> list[RowPair]:
        return [*self._shared, self._own]

    def newest(self) -> DraftRow:
        return DraftRow(*self._own.rows_of(self._own.rows - 1, self._own.rows, self._num_kv_heads))

    def change_form(self) -> bool:
        return False

    def room(self) -> int:
        return UNBOUNDED

    def append(self, k: F32, v: F32) -> None:
        self._own.append(k, v)

    def reserve(self, rows: int) -> bool:
        grown = [stream.reserve(self._own.rows + rows) for stream in self._own.streams()]
        return any(grown)

    def spare(self) -> int:
        return self._own.spare()

    def commit(self, rows: int) -> int:
        return self._shared_rows + self._own.commit(rows)

    def truncate(self, rows: int) -> None:
        raise KvFormError(_NO_CHANGE)

    def can_drop(self, count: int) -> bool:
        return False

    def drop_front(self, count: int) -> None:
        raise KvFormError(_NO_CHANGE)

    def gather(self, kept: I64) -> None:
        raise KvFormError(_NO_CHANGE)


class DraftView(LayerKvCache):
    """What kernels take as the cache of a draft's row; one after the other may be shown in the same view.

    `mode` is the layer's: f16 rows are rounded here too. A row that the layer would code in 8 or 4 bits is read exact
    by its own draft and by the next ones, which only a guess can show.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, mode: str = "f32") -> None:
        super().__init__(num_kv_heads, head_dim)
        self.layer_mode = mode
        self._rows = _ViewRows(num_kv_heads, head_dim, mode)
        self._store = self._rows

    def show(self, cache: LayerKvCache | None, position: int, rows: Sequence[DraftRow]) -> None:
        """Become the rows of `cache` below `position`, then `rows`; kernels append the draft's own row behind.

        The view is good until the cache's next change. Raises KvFormError for a layer without rows (an O(1) overlay, a
        ring, a recurrent state) or with dead heads, RollbackError where the rows below cannot be told apart.
        """
        shared: list[RowPair] = []
        if cache is not None:
            if cache.stores_no_rows or any(not cache.head_len(h) for h in range(self.num_kv_heads) if cache.seq_len):
                raise KvFormError("a draft reads stored rows of every head: this layer has none to read")
            shared = cache.rows_below(position)
            reading = cache.reading
            self.reading.set(window=reading.window, softcap=reading.softcap, sinks=reading.sinks)
        self._rows.share(shared)
        for row in rows:
            self._rows.append(row.k, row.v)
        self._next = position + len(rows)
        self._describe()

    def forget(self) -> None:
        """Show nothing: what was shared may go."""
        self._rows.share([])
        self._describe()

    def newest(self) -> DraftRow:
        """The row that was appended last: the draft's own, once it was computed."""
        return self._rows.newest()
