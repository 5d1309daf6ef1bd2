"""What reads a layer's rows: a head's K and V; the attend family: one head, a group, a group up to a row, a chunk. The
plain version."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .attend import Softmax, attend
from .errors import KvShapeError
from .layer_rows import LayerRows
from .memory import padded
from .row_store import read_rows
from .streams import F32


class AttendFamily(LayerRows):
    """Reads of a layer's rows; window, softcap and sinks that are not given are those of `reading`."""

    @property
    def sinks(self) -> F32 | None:
        """f32 [query heads], one learned logit each, or None; they belong to the layer and stay with it."""
        return self.reading.sinks

    @sinks.setter
    def sinks(self, logits: F32 | None) -> None:
        reading = self.reading
        reading.set(window=reading.window, softcap=reading.softcap, sinks=logits, keeps_mass=reading.keeps_mass)

    def head_len(self, kv_head: int) -> int:
        """Rows stored for one head: 0 for a dead one."""
        return self._store.rows if kv_head in self._slots else 0

    def head_keys(self, kv_head: int) -> F32:
        """K of one head, decoded, f32 [rows, head_dim]. A copy."""
        return self._head_rows(kv_head, keys=True)

    def head_values(self, kv_head: int) -> F32:
        """V of one head, decoded, f32 [rows, head_dim]. A copy."""
        return self._head_rows(kv_head, keys=False)

    def _head_rows(self, kv_head: int, *, keys: bool) -> F32:
        slot = self._slots.get(kv_head)
        if slot is None:
            return np.zeros((0, self.head_dim), np.float32)
        return read_rows(self._store, slot, 0, keys=keys)

    def attend(self, q: F32, kv_head: int) -> tuple[F32, F32]:
        """One query [head_dim] over every row, scale 1/√head_dim → (out [head_dim], probabilities [rows])."""
        out, probs = self._attend(np.asarray(q, np.float32).reshape(1, -1), kv_head, 0, self.head_len(kv_head))
        return out[0], probs[0]

    def attend_group(
        self, q_group: F32, kv_head: int, out: F32, importance: F32, scale: float | None = None, first: int = 0,
        softcap: float = 0.0, sinks: F32 | Sequence[float] = (),
    ) -> None:  # fmt: skip
        """The query heads of one KV head: `attend_group_upto` over every stored row."""
        self.attend_group_upto(q_group, kv_head, out, importance, scale, first, softcap, None, sinks)

    def attend_group_upto(
        self, q_group: F32, kv_head: int, out: F32, importance: F32, scale: float | None = None, first: int = 0,
        softcap: float = 0.0, upto: int | None = None, sinks: F32 | Sequence[float] = (),
    ) -> None:  # fmt: skip
        """The query heads of one KV head over stored rows [first, upto): what the cache gave when it held `upto` rows.

        q_group and out: f32 [heads · head_dim], out written in place; `importance` f32 [≤ rows]: each head's
        probabilities are added to it. `scale` defaults to 1/√head_dim; `softcap` 0 is off; `sinks` is one logit per
        head, or empty. The newest row stays visible whatever `first` says. Bit-equal to one head at a time.
        """
        q = np.asarray(q_group, np.float32).reshape(-1, self.head_dim)
        rows = self.head_len(kv_head) if upto is None else min(upto, self.head_len(kv_head))
        lo = max(min(first, rows - 1), 0)
        result, probs = self._attend(q, kv_head, lo, rows, scale, softcap, sinks)
        out.reshape(q.shape)[:] = result
        hi = min(len(importance), rows)
        for head_probs in probs:
            importance[lo:hi] += head_probs[: max(hi - lo, 0)]

    def attend_chunk(
        self, q: F32, first_row: int, num_heads: int, out: F32, scale: float | None = None, window: int | None = None,
        softcap: float = 0.0, keep_importance: bool = True, settled: int | None = None,
    ) -> None:  # fmt: skip
        """Causal attention of a chunk whose rows are stored already: query i sees stored rows up to first_row + i.

        q and out f32 [rows · num_heads · head_dim]; `window` rows at most are visible (None: all); the layer's
        `sinks` apply. Every row's result is what `attend_group_upto` gives for it, bit for bit. The rows'
        probabilities are added to `importance`, one row after the other; those of rows at or above position `settled`
        (None: no row) are held until they are accepted. Where `reading` keeps mass it is kept whatever the caller says,
        and held.
        """
        if self.reading.keeps_mass:
            keep_importance, settled = True, 0
        window, softcap = window or self.reading.window, softcap or self.reading.softcap
        queries = np.asarray(q, np.float32).reshape(-1, num_heads, self.head_dim)
        results = out.reshape(queries.shape)
        per_kv = self._heads_per_kv(num_heads)
        mass = np.zeros((len(queries), first_row + len(queries)), np.float32) if keep_importance else None
        for g in range(self.num_kv_heads):
            at = slice(g * per_kv, (g + 1) * per_kv)
            results[:, at] = self._attend_rows(queries[:, at], g, first_row, scale, window, softcap, at, mass)
        if mass is not None:
            position = self._next - self._store.rows + first_row
            final = len(mass) if settled is None else min(max(settled - position, 0), len(mass))
            for row in mass[:final]:
                self.accumulate_imp(row)
            if final < len(mass):
                self._importance.hold(position + final, mass[final:])

    def _attend_rows(
        self, q: F32, kv_head: int, first_row: int, scale: float | None, window: int | None, softcap: float,
        heads: slice, mass: F32 | None,
    ) -> F32:  # fmt: skip
        """One group's queries [rows, heads, head_dim], all rows at once; probabilities join `mass` head by head."""
        rows, per_kv, _ = q.shape
        upto = np.minimum(first_row + 1 + np.arange(rows), self.head_len(kv_head))
        first = np.maximum(upto - window, 0) if window else np.zeros_like(upto)
        sinks = () if self.sinks is None else np.tile(self.sinks[heads], rows)
        slot = self._slots.get(kv_head)
        if slot is None:
            return np.zeros_like(q)
        flat = self._wide(q.reshape(-1, self.head_dim))
        softmax = self._softmax(scale, softcap, sinks, len(flat))
        bounds = np.repeat(first, per_kv), np.repeat(upto, per_kv)
        out, probs, lo = attend(self._store.segments(), slot, flat, *bounds, softmax)
        if mass is not None:
            by_head = probs.reshape(rows, per_kv, -1).swapaxes(0, 1)
            for head_probs in by_head:
                mass[:, lo : lo + head_probs.shape[1]] += head_probs
        return out[:, : self.head_dim].reshape(q.shape)

    def _attend(
        self, q: F32, kv_head: int, first: int, upto: int, scale: float | None = None, softcap: float = 0.0,
        sinks: F32 | Sequence[float] = (),
    ) -> tuple[F32, F32]:  # fmt: skip
        slot = self._slots.get(kv_head)
        softmax = self._softmax(scale, softcap, sinks, len(q))
        if slot is None or upto <= first:
            return np.zeros_like(q), np.zeros((len(q), 0), np.float32)
        bounds = np.full(len(q), first), np.full(len(q), upto)
        out, probs, _ = attend(self._store.segments(), slot, self._wide(q), *bounds, softmax)
        return out[:, : self.head_dim], probs

    def _softmax(self, scale: float | None, softcap: float, sinks: F32 | Sequence[float], heads: int) -> Softmax:
        logits = np.asarray(sinks, np.float32)
        if len(logits) not in (0, heads):
            raise KvShapeError(f"{len(logits)} sink logits for {heads} heads")
        return Softmax(self.head_dim**-0.5 if scale is None else scale, softcap, logits)

    def _wide(self, q: F32) -> F32:
        """[n, head_dim] → [n, padded_dim]."""
        wide = np.zeros((len(q), padded(self.head_dim)), np.float32)
        wide[:, : self.head_dim] = q
        return wide

    def _heads_per_kv(self, num_heads: int) -> int:
        if num_heads % self.num_kv_heads:
            raise KvShapeError(f"{num_heads} query heads do not divide over {self.num_kv_heads} KV heads")
        return num_heads // self.num_kv_heads
