"""Seeded passes at a station: what a full slot of `draft` and `live` starts; how drafts read, are kept and answered.

A seeded row is a job like any other once its slot is full; gate_up sends h on before it computes. Drafts are best
effort: one that cannot go on is counted and dropped, and nothing of a session changes by it (`docs/protocol.md`,
*Drafts*). Live rows are canonical and have every rule of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aeonflow.errors import CallError, PoisonedError
from aeonflow.messages import SEEDS, DraftOffer
from aeonflow.tensors import Kind

from ..kernels.base import vocab_range
from ..kv.draft_view import DraftView
from ..kv.errors import KvFormError, RollbackError
from ..models.roles import RoleSpan
from .arrivals import Arrivals
from .batch import is_finite
from .counters import Counters
from .emit import Emitter
from .failures import Failures
from .queue import Job
from .scratch import DRAFT_WINDOW, Views
from .seed_port import SeedPort
from .seeds import Completed, signed_sum
from .session import Session
from .stages import CompiledRoute, Stage

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

MAX_QUEUED_DRAFTS = 3 * (DRAFT_WINDOW + 2)  # jobs of a session's drafts; more mean that the station cannot keep up
MAX_CANDIDATES = 64  # tokens a head part answers a draft with
_DRAFT = int(Kind.DRAFT)
_ROLES = frozenset({"attn", "gate_up", "down", "head"})


def draft_offer(spans: Sequence[RoleSpan]) -> DraftOffer | None:
    """What a station with these roles says of drafts in its hello; None where none of them has a part in any."""
    if not any(span.role in _ROLES for span in spans):
        return None
    return DraftOffer(SEEDS, DRAFT_WINDOW, MAX_QUEUED_DRAFTS)


class SeededPasses:
    """Registers with the port what full slots of "draft" and "live" start."""

    def __init__(
        self,
        vocab_size: int,
        port: SeedPort,
        arrivals: Arrivals,
        emitter: Emitter,
        failures: Failures,
        counters: Counters,
    ) -> None:
        self._vocab_size = vocab_size
        self._port = port
        self._arrivals = arrivals
        self._emitter = emitter
        self._failures = failures
        self._events = counters.events
        self._views = Views()
        port.starts["draft"] = port.starts["live"] = self._start

    def view(self, job: Job) -> DraftView | None:
        """What a draft's attention reads; None, counted, where a row it needs is missing or cannot be read."""
        session, layer, position = job.session, job.stage.layer, job.head.first
        (cache,) = session.caches_of(layer, layer)
        rows = session.scratch.rows(layer, min(cache.pos_len, position), position)
        if rows is None:
            self._events["drafts_starved"] += 1
            return None
        view = self._views.take(cache)
        try:
            view.show(cache, position, rows)
        except (KvFormError, RollbackError):
            self._events["drafts_unreadable"] += 1
            self._views.give_back(view)
            return None
        self._events["draft_scratch_reads"] += len(rows)
        return view

    def attended(self, job: Job, view: DraftView) -> None:
        """The row of a draft's attention is whole: it is kept for the drafts of later positions."""
        self._events["drafts_attended"] += 1
        job.session.scratch.keep(job.stage.layer, job.head.first, view.newest())

    def release(self, view: DraftView) -> None:
        """A draft is done with what it read, whatever became of it."""
        self._views.give_back(view)

    def answer(self, job: Job, logits: F32) -> None:
        """The end of a draft at a head part, logits [1, V of the part]: its best tokens go to the host."""
        stage = job.stage
        lo, _ = vocab_range(self._vocab_size, stage.part, stage.parts)
        ids, values = candidates(logits[-1], lo)
        self._events["drafts_answered"] += 1
        self._emitter.candidates(job, ids, values)

    def _start(self, session: Session, route: CompiledRoute, stage: Stage, done: Completed) -> None:
        head, rows = done.head, signed_sum(done)
        if head.kind == _DRAFT and session.queued_drafts >= MAX_QUEUED_DRAFTS:
            self._events["drafts_over_limit"] += 1
            return
        if stage.early:
            if not is_finite(rows):
                what = f"h of layer {stage.layer} has NaN or infinity in rows from {head.first} on"
                self._arrivals.poisoned(session, head, stage, None, PoisonedError(what))
                return
            self._port.send_early(Job(stage, route, session, head, (rows,), None))
        try:
            self._arrivals.arrived(session, route, stage, head, rows, stage.inputs[0])
        except CallError as error:
            self._failures.fail(session, head, stage.stream, stage.layer, None, error)


def candidates(logits: F32, lo: int, most: int = MAX_CANDIDATES) -> tuple[U32, F32]:
    """The `most` largest of logits [V] whose first has id `lo`: ids u32 and logits f32 [1, K], the largest first, of
    equal ones the lowest id first. K is V where that is less."""
    count = min(most, len(logits))
    floor = np.partition(logits, len(logits) - count)[len(logits) - count]
    found = np.flatnonzero(logits >= floor)
    order = found[np.argsort(-logits[found], kind="stable")][:count]
    return (order + lo).astype(np.uint32)[None], logits[order].astype(np.float32)[None]
