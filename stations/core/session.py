"""A session: one sequence on this station. Epochs, the KV of its layers, half-filled joins (design, *Epochs*).

The rules of epochs are here and nowhere else: `relation` says what a frame's (epoch, base) means, `adopt` cuts. While
a batch of the session is in the compute thread its caches are not touched: the cut waits until `computed`. A cache that
cannot be cut, since rows changed form above the cut, is emptied: the host computes them anew (*State barriers*).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from aeonflow.errors import BadTensorError, RollbackError
from aeonflow.kv_options import Barrier, is_barrier, last_barrier, next_barrier

from .joins import JoinGauge, Joins
from .kv_layout import KvLayout
from .scratch import Scratch
from .seeds import SeedSlots
from .stages import StageKey

if TYPE_CHECKING:
    from aeonflow.tensors import Tensor

    from ..kv.layer_cache import LayerKvCache

NO_EPOCH = -1  # before the first frame: a station that replaces another starts at whatever it sees


class Relation(Enum):
    """What a frame's epoch and base are to the session's."""

    CURRENT = "current"
    NEWER = "newer"
    STALE = "stale"
    CONFLICT = "conflict"  # same epoch, other base: a protocol error


class Session:
    """`kv_bytes` is what the session reserved; `owner` the host's link, where results and errors go."""

    __slots__ = (
        "barriers",
        "base",
        "caches",
        "epoch",
        "id",
        "idle_s",
        "is_closed",
        "is_computing",
        "is_poisoned",
        "joins",
        "kept",
        "kv_bytes",
        "last_used_s",
        "layout",
        "lost",
        "max_positions",
        "owner",
        "passed",
        "pending_cut",
        "prefills",
        "queued",
        "queued_drafts",
        "route",
        "scratch",
        "seeds",
        "settled",
    )

    def __init__(
        self,
        id: int,
        owner: int,
        route: int,
        max_positions: int,
        kv_bytes: int,
        idle_s: float,
        now: float,
        join_gauge: JoinGauge,
        layout: KvLayout,
        barriers: tuple[Barrier, ...] = (),
    ) -> None:
        self.id = id
        self.owner = owner
        self.route = route
        self.max_positions = max_positions
        self.kv_bytes = kv_bytes
        self.idle_s = idle_s
        self.last_used_s = now
        self.epoch = NO_EPOCH
        self.base = 0
        self.settled = 0
        self.layout = layout
        self.barriers = barriers  # of the layers that this station caches for the session
        self.caches: dict[int, LayerKvCache] = {}
        self.lost: RollbackError | None = None  # why rows below the epoch's base are not here any more
        self.kept = 0  # rows that every layer has kept, where `lost` says that others are gone
        self.joins = Joins(join_gauge)
        self.seeds = SeedSlots(join_gauge)
        self.scratch = Scratch()
        self.queued = 0  # jobs in the queue
        self.queued_drafts = 0  # of these, rows that are not canonical
        self.prefills: dict[StageKey, int] = {}  # prefill chunks in the queue, which later rows must not overtake
        self.passed: dict[tuple[str, int], int] = {}  # (role, layer) → position after the last row sent on
        self.is_poisoned = False  # until the next epoch
        self.is_closed = False
        self.is_computing = False
        self.pending_cut: int | None = None

    def relation(self, epoch: int, base: int) -> Relation:
        """What a frame of (epoch, base) is to this session."""
        if epoch == self.epoch:
            return Relation.CURRENT if base == self.base else Relation.CONFLICT
        return Relation.NEWER if epoch > self.epoch else Relation.STALE

    def adopt(self, epoch: int, base: int) -> None:
        """Enter a newer epoch: rows at or above `base` are void, joins are dropped, a poisoned session is well again.

        The caller drops the session's queued jobs.
        """
        self.epoch, self.base = epoch, base
        self.settled = min(self.settled, base)
        self.is_poisoned = False
        if base <= self.kept:  # else rows of this epoch are missing too, whatever it was begun for
            self.lost = None
        self.joins.clear()
        self.seeds.clear()
        self.scratch.clear()
        for at, position in self.passed.items():
            if position > base:
                self.passed[at] = base
        if self.is_computing:
            self.pending_cut = base if self.pending_cut is None else min(base, self.pending_cut)
        else:
            self._cut(base)

    def computed(self) -> None:
        """The batch in the compute thread is done: carry out a cut that waited for it."""
        self.is_computing = False
        if self.pending_cut is not None:
            self._cut(self.pending_cut)
            self.pending_cut = None

    def cut_layers(self, lo: int, hi: int, base: int) -> None:
        """Forget rows from `base` on at layers lo..hi: what a failed or poisoned pass wrote."""
        for layer in range(lo, hi + 1):
            cache = self.caches.get(layer)
            if cache is None:
                continue
            barrier = last_barrier(self.barriers, cache.pos_len) if self.barriers else 0
            if base < barrier:
                del self.caches[layer]  # a fresh one is made when rows come
                if base:
                    self._lose(0, base, f"caches changed form at {barrier}, what was below is gone")
            else:
                target = cache.restorable(base)
                cache.truncate_to(target)
                if target < base:
                    self._lose(
                        target, base, f"attention masses since {target} have joined, rows from there on are gone"
                    )

    def _lose(self, kept: int, base: int, why: str) -> None:
        self.kept = kept if self.lost is None else min(kept, self.kept)
        self.lost = RollbackError(f"a cut to position {base}: {why}; resume from tokens")

    def length(self, layer: int) -> int:
        """Canonical rows cached at `layer`."""
        cache = self.caches.get(layer)
        return cache.pos_len if cache is not None else 0

    def valid_rows(self, layers: tuple[int, ...], base: int) -> int:
        """Rows below `base` that every one of `layers` holds; `base` where there are no layers."""
        return min((min(self.length(layer), base) for layer in layers), default=base)

    def caches_of(self, lo: int, hi: int) -> list[LayerKvCache]:
        """The caches of layers lo..hi, made when first needed."""
        caches = []
        for layer in range(lo, hi + 1):
            cache = self.caches.get(layer)
            if cache is None:
                cache = self.caches[layer] = self.layout.new_cache(layer, self.max_positions)
            caches.append(cache)
        return caches

    def settle(self, settled: int) -> None:
        """Every row below `settled` is final; within an epoch this only grows."""
        self.settled = max(self.settled, settled)

    def barrier_error(self, head: Tensor) -> BadTensorError | None:
        """Why a pass may not enter the caches: it crosses a state barrier, or starts at one that is not settled."""
        first, end = head.first, head.first + head.rows
        at = next_barrier(self.barriers, first)
        if at is not None and end > at:
            return BadTensorError(f"rows {first} to {end - 1} cross the state barrier at {at}: a pass must end there")
        if max(self.settled, head.settled) < first and is_barrier(self.barriers, first):
            return BadTensorError(
                f"rows from {first} start at a state barrier: rows from {head.settled} are not settled"
            )
        return None

    def prepare(self, cache: LayerKvCache, first: int) -> None:
        """Carry out what is due before rows from `first` on are stored. In the compute thread, with the kernels."""
        if self.barriers and is_barrier(self.barriers, first):
            self.layout.change_form(cache, first)
        elif cache.reading.keeps_mass:
            cache.settle(min(self.settled, first))

    def cached_bytes(self) -> int:
        """Bytes that the caches hold now."""
        return sum(cache.memory_bytes() for cache in self.caches.values())

    def _cut(self, base: int) -> None:
        if self.caches:
            self.cut_layers(min(self.caches), max(self.caches), base)
