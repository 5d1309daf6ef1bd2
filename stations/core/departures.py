"""The way out of a pass: jobs taken from the queue into batches, computed outputs sent to their successors.

The stale test is made again when a job leaves the queue and before its outputs are sent (`docs/protocol.md`, *Epochs*):
a station never sends under an epoch older than its own.
"""

from __future__ import annotations

from typing import Any, cast

import numpy.typing as npt

from aeonflow.errors import GapError, PoisonedError
from aeonflow.tensors import Kind

from ..kv.draft_view import DraftView
from ..kv.layer_cache import LayerKvCache
from .arrivals import Arrivals
from .batch import Batch
from .counters import Counters
from .drafts import SeededPasses
from .emit import Emitter
from .failures import Failures, kernel_error
from .queue import Job, JobQueue
from .seed_port import SeedPort

Array = npt.NDArray[Any]
_CANONICAL = int(Kind.CANONICAL)


class Departures:
    """Empties the queue; what stays on this station goes back in by `arrivals`."""

    def __init__(
        self,
        queue: JobQueue,
        arrivals: Arrivals,
        counters: Counters,
        emitter: Emitter,
        failures: Failures,
        seed_port: SeedPort,
        seeded: SeededPasses,
    ) -> None:
        self._queue = queue
        self._arrivals = arrivals
        self._events = counters.events
        self._emitter = emitter
        self._failures = failures
        self._seed_port = seed_port
        self._seeded = seeded

    def next_batch(self) -> Batch | None:
        """What is computed next; None when nothing waits. Jobs that may not run any more are dropped on the way."""
        while jobs := self._queue.take():
            ready = [job for job in jobs if self._is_ready(job)]
            if not ready:
                continue
            stage = ready[0].stage
            batch = self._with_caches(ready) if stage.has_cache else Batch(stage, ready, [])
            if batch is not None:
                return batch
        return None

    def finish(self, batch: Batch) -> None:
        """Send on what a computed batch gave, job by job, in order."""
        stage = batch.stage
        for index, job in enumerate(batch.jobs):
            session, head = job.session, job.head
            if stage.has_cache:
                session.computed()
            if head.epoch != session.epoch or session.is_closed or session.is_poisoned:
                self._drop(job, "stale_results")
            elif head.kind != _CANONICAL:
                self._finish_draft(job, batch, index)
            elif batch.error is not None:
                session.cut_layers(stage.layer, stage.hi, head.first)
                self._failures.fail_job(job, stage.layer, kernel_error(batch.error))
            elif batch.poisoned and index in batch.poisoned:
                self._poison_rows(job)
            else:
                session.passed[job.stage.place] = head.first + head.rows
                self._emit(job, batch.outputs[index])
        if stage.has_cache and batch.jobs[0].head.kind != _CANONICAL:
            for (view,) in batch.caches:
                self._seeded.release(cast(DraftView, view))

    def _finish_draft(self, job: Job, batch: Batch, index: int) -> None:
        """The same for rows that are not canonical: whatever goes wrong, the session's own rows stay as they are."""
        if batch.error is not None:
            self._failures.fail_job(job, job.stage.layer, kernel_error(batch.error))
        elif index in batch.poisoned:
            error = PoisonedError(f"{job.stage.role} of layer {job.stage.layer} gave NaN or infinity in a draft")
            self._arrivals.poisoned(job.session, job.head, job.stage, job.caller, error)
        else:
            if views := batch.caches:
                self._seeded.attended(job, cast(DraftView, views[index][0]))
            self._emit(job, batch.outputs[index])

    def _drop(self, job: Job, stale_event: str) -> None:
        """Count a job whose session went on without it."""
        if job.session.is_closed:
            self._failures.drop_job(job, "closed_drops", "is closed")
        elif job.head.epoch != job.session.epoch:
            self._failures.drop_job(job, stale_event, "has left that epoch")
        else:
            self._failures.drop_job(job, "poisoned_frames", "is poisoned")

    def _is_ready(self, job: Job) -> bool:
        """The tests when a job leaves the queue; at a cache its rows must continue what every layer holds."""
        stage, session, head = job.stage, job.session, job.head
        if head.epoch != session.epoch or session.is_closed or session.is_poisoned:
            self._drop(job, "stale_jobs")
            return False
        if not stage.has_cache or head.kind != _CANONICAL:
            return True
        first = head.first
        for layer in range(stage.layer, stage.hi + 1):
            have = session.length(layer)
            if have == first:
                continue
            if first < have:
                self._failures.drop_job(job, "duplicate_rows", f"has {have} rows")
            else:
                self._events["gaps"] += 1
                gap = GapError(f"gap: have {have}, got {first} ({stage.role} {layer})")
                self._failures.fail_job(job, layer, session.lost or gap)
            return False
        if session.barriers and (error := session.barrier_error(head)) is not None:
            self._failures.fail_job(job, stage.layer, error)
            return False
        session.settle(head.settled)
        return True

    def _with_caches(self, jobs: list[Job]) -> Batch | None:
        stage = jobs[0].stage
        ready: list[Job] = []
        caches: list[list[LayerKvCache]] = []
        for job in jobs:
            if job.head.kind != _CANONICAL:
                if (view := self._seeded.view(job)) is None:
                    continue
                caches.append([view])
                job.session.is_computing = True
                ready.append(job)
                continue
            try:
                caches.append(job.session.caches_of(stage.layer, stage.hi))
            except MemoryError as error:
                self._failures.fail_job(job, stage.layer, kernel_error(error))
                continue
            job.session.is_computing = True
            ready.append(job)
        return Batch(stage, ready, caches) if ready else None

    def _emit(self, job: Job, outputs: tuple[Array, ...]) -> None:
        """Outputs to the caller, to the host, or along the edges: to other stations and to this one itself."""
        stage = job.stage
        if job.caller is not None:
            self._emitter.answer(job, job.caller, outputs)
        elif stage.role == "head":
            if job.head.kind == _CANONICAL:
                self._emitter.logits(job, outputs[0])
            else:
                self._seeded.answer(job, outputs[0])
        else:
            for edge in stage.edges or ():
                if edge.url:
                    self._emitter.forward(job, edge, outputs)
                else:
                    self._arrivals.deliver_inside(job, edge, outputs)
            if stage.seeds:
                self._seed_port.send(job, outputs)

    def _poison_rows(self, job: Job) -> None:
        stage, head = job.stage, job.head
        job.session.cut_layers(stage.layer, stage.hi, head.first)
        what = f"{stage.role} of layer {stage.layer}" if stage.hi == stage.layer else f"layers {stage.layer}-{stage.hi}"
        error = PoisonedError(f"{what} gave NaN or infinity in rows {head.first} to {head.first + head.rows - 1}")
        self._arrivals.poisoned(job.session, head, stage, job.caller, error)
