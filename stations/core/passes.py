"""The path of a pass: tensors in, epoch test, checks, joins, queue; after the compute: outputs to their successors.

The order of tests is part of the protocol (`docs/protocol.md`, *Epochs*): stale frames die before anything else is
looked at, a frame is checked before its newer epoch is adopted, and the stale test is made again when a job leaves the
queue and before its outputs are sent.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from aeonflow.errors import (
    AeonflowError,
    BadTensorError,
    CallError,
    GapError,
    NotForYouError,
    OverloadedError,
    PoisonedError,
    ProtocolError,
    UnknownSessionError,
)
from aeonflow.frames import Buffer
from aeonflow.tensors import Kind, Port, Tensor, Want, unpack_tensors

from ..kernels.base import Backend
from .batch import Batch
from .counters import Counters
from .emit import Emitter, acknowledgement
from .intake import Intake, find_stages
from .joins import Part, sum_parts
from .limits import StationLimits
from .outbox import Outbox
from .outgoing import Caller
from .queue import Job, JobQueue
from .routes import Routes
from .session import Relation, Session
from .sessions import SessionTable
from .stages import INPUT_PORTS, CompiledRoute, Stage

Array = npt.NDArray[Any]


class Passes:
    """Owns the queue. Sessions, routes and the outbox are shared with the control calls."""

    def __init__(
        self,
        backend: Backend,
        limits: StationLimits,
        intake: Intake,
        sessions: SessionTable,
        routes: Routes,
        outbox: Outbox,
        counters: Counters,
        emitter: Emitter,
    ) -> None:
        self.queue = JobQueue(limits)
        self._backend = backend
        self._limits = limits
        self._intake = intake
        self._sessions = sessions
        self._routes = routes
        self._outbox = outbox
        self._events = counters.events
        self._emitter = emitter

    def receive(self, caller: Caller, role: str, payload: Buffer, is_host: bool, now: float) -> None:
        """A tensor message from a host (`is_host`) or from another station."""
        try:
            tensors = unpack_tensors(payload)
        except BadTensorError as error:
            self._unreadable(caller, payload, is_host, error)
            return
        head = tensors[0]
        session = self._sessions.get(head.session)
        if session is None or (is_host and session.owner != caller.link):
            self._events["unknown_sessions"] += 1
            if is_host:
                self._outbox.refuse(
                    caller, UnknownSessionError(f"session {head.session} is not open here"), head.session
                )
            return
        called_by = caller if head.route == 0 else None
        try:
            if called_by is not None and not is_host:
                raise NotForYouError("a station's key permits forwarding along a route, not calls")
            relation = session.relation(head.epoch, head.base)
            if relation is Relation.CURRENT:
                if session.is_poisoned:
                    self._drop_frame(session, head, called_by, caller.stream, "poisoned_frames", "is poisoned")
                    return
            elif relation is Relation.STALE:
                self._drop_frame(session, head, called_by, caller.stream, "stale_frames", "has left that epoch")
                return
            elif relation is Relation.CONFLICT:
                raise ProtocolError(f"epoch {head.epoch} has base {session.base}, a frame says {head.base}")
            session.last_used_s = now
            route = self._routes.get(session.owner, head.route)
            stages = find_stages(route, caller.stream, role, head)
            self._intake.check_rows(head, session.max_positions)
            arrays = [self._intake.array(tensor, stages[0]) for tensor in tensors]
            if relation is Relation.NEWER:
                self.adopt(session, head.epoch, head.base)
            for stage in stages:
                self._accept(session, route, stage, tensors, arrays, called_by)
        except (CallError, ProtocolError) as error:
            self._events["bad_messages"] += 1
            self._fail(session, head, caller.stream, head.layer, called_by, error)

    def adopt(self, session: Session, epoch: int, base: int) -> None:
        """The one way into a newer epoch: caches cut, joins dropped, queued jobs of older epochs dropped."""
        self._events["epochs"] += 1
        session.adopt(epoch, base)
        self.drop_queued(session, "stale_jobs", "has left that epoch")

    def drop_queued(self, session: Session, event: str, why: str) -> None:
        """Remove everything of a session from the queue; calls are answered, chain jobs counted."""
        if session.queued:
            for job in self.queue.drop(lambda job: job.session is session):
                self._drop_frame(session, job.head, job.caller, job.stage.stream, event, why)

    def cancel_call(self, caller: Caller) -> None:
        """A caller VENTed its own call: what waits of it is dropped without an answer."""
        self._events["cancels"] += len(self.queue.drop(lambda job: job.caller == caller))

    def next_batch(self) -> Batch | None:
        """What is computed next; None when nothing waits. Jobs that may not run any more are dropped on the way."""
        while jobs := self.queue.take():
            ready = [job for job in jobs if self._is_ready(job)]
            if ready:
                return self._batch(ready)
        return None

    def finish(self, batch: Batch) -> None:
        """Send on what a computed batch gave, job by job, in order."""
        for index, job in enumerate(batch.jobs):
            session, stage, head = job.session, job.stage, job.head
            if stage.has_cache:
                session.computed()
            if not self._is_current(job, "stale_results"):
                continue
            if batch.error is not None:
                session.cut_layers(stage.layer, stage.hi, head.first)
                self._fail(session, head, stage.stream, stage.layer, job.caller, _kernel_error(batch.error))
            elif index in batch.poisoned:
                self._poison_rows(job)
            else:
                session.passed[stage.place] = head.first + head.rows
                self._emit(job, batch.outputs[index])

    def poison(self, session: Session) -> None:
        """Nothing of this session's epoch is to be trusted: drop what waits of it until the host starts another."""
        session.is_poisoned = True
        session.joins.clear()
        self.drop_queued(session, "poisoned_frames", "is poisoned")

    def _accept(
        self,
        session: Session,
        route: CompiledRoute,
        stage: Stage,
        tensors: list[Tensor],
        arrays: list[Array],
        caller: Caller | None,
    ) -> None:
        """Checked inputs of one message: joined, acknowledged or queued."""
        head = tensors[0]
        if stage.has_cache and head.kind != Kind.CANONICAL:
            self._drop_frame(session, head, caller, stage.stream, "drafts_dropped", "takes no draft at a cache")
            return
        expected = INPUT_PORTS[stage.role]
        if len(arrays) == 1 and len(expected) == 1:
            self._arrive(session, route, stage, head, arrays[0], head.part, caller)
            return
        ports = [tensor.port for tensor in tensors]
        if sorted(ports) == list(expected):
            self._push(session, route, stage, head, tuple(arrays[ports.index(port)] for port in expected), caller)
        elif len(arrays) == 1 and caller is None:
            self._join(session, route, stage, head, arrays[0], expected.index(Port(ports[0])), len(expected))
        else:
            named = ", ".join(Port(port).name for port in ports)
            wanted = " and ".join(port.name for port in expected)
            raise BadTensorError(f"{stage.role} was given {named}: {wanted} are expected, in one message of a call")

    def _arrive(
        self,
        session: Session,
        route: CompiledRoute,
        stage: Stage,
        head: Tensor,
        array: Array,
        part: int,
        caller: Caller | None,
    ) -> None:
        """One input of a stage that takes one, from outside or from this station itself."""
        if stage.joined_embeds:
            if part >= stage.joined_embeds:
                raise BadTensorError(f"x of embed part {part}: the route has {stage.joined_embeds} parts")
            self._join(session, route, stage, head, array, part, stage.joined_embeds)
            return
        if stage.role == "head":
            if head.want == Want.NONE:
                self._acknowledge(session, stage, head, caller)
                return
            self._intake.check_answer(head, stage)
            if head.want == Want.LAST:
                array = array[-1:]
        self._push(session, route, stage, head, (array,), caller)

    def _join(
        self, session: Session, route: CompiledRoute, stage: Stage, head: Tensor, array: Array, slot: int, slots: int
    ) -> None:
        limits = self._limits
        if len(session.joins) >= limits.max_joins:
            raise OverloadedError(f"{len(session.joins)} joins of the session wait: at most {limits.max_joins}")
        self._check_room(array.nbytes)
        try:
            joined = session.joins.add(stage.key, slots, slot, array, head)
        except PoisonedError as error:
            self._poisoned(session, head, stage, None, error)
            return
        if joined is Part.DUPLICATE:
            self._events["duplicate_parts"] += 1
        elif not isinstance(joined, Part):
            whole, parts = joined
            inputs = (sum_parts(parts),) if stage.joined_embeds else tuple(parts)
            self._push(session, route, stage, whole, inputs, None)

    def _push(
        self,
        session: Session,
        route: CompiledRoute,
        stage: Stage,
        head: Tensor,
        inputs: tuple[Array, ...],
        caller: Caller | None,
    ) -> None:
        limits = self._limits
        if len(self.queue) >= limits.max_queued_jobs:
            raise OverloadedError(f"{len(self.queue)} jobs wait: at most {limits.max_queued_jobs}")
        self._check_room(sum(array.nbytes for array in inputs))
        self.queue.push(Job(stage, route, session, head, inputs, caller))

    def _check_room(self, num_bytes: int) -> None:
        waiting = self.queue.num_bytes + self._sessions.join_gauge.num_bytes
        if waiting + num_bytes > self._limits.max_queued_bytes:
            raise OverloadedError(
                f"{waiting:,} bytes wait for compute, {num_bytes:,} more do not fit {self._limits.max_queued_bytes:,}"
            )

    def _is_current(self, job: Job, stale_event: str) -> bool:
        session = job.session
        if session.is_closed:
            self._drop_frame(session, job.head, job.caller, job.stage.stream, "closed_drops", "is closed")
        elif job.head.epoch != session.epoch:
            self._drop_frame(session, job.head, job.caller, job.stage.stream, stale_event, "has left that epoch")
        elif session.is_poisoned:
            self._drop_frame(session, job.head, job.caller, job.stage.stream, "poisoned_frames", "is poisoned")
        else:
            return True
        return False

    def _is_ready(self, job: Job) -> bool:
        """The tests when a job leaves the queue; at a cache its rows must continue what every layer holds."""
        stage, session, first = job.stage, job.session, job.head.first
        if not self._is_current(job, "stale_jobs"):
            return False
        if not stage.has_cache:
            return True
        for layer in range(stage.layer, stage.hi + 1):
            have = session.length(layer)
            if have == first:
                continue
            if first < have:
                self._drop_frame(session, job.head, job.caller, stage.stream, "duplicate_rows", f"has {have} rows")
            else:
                self._events["gaps"] += 1
                gap = GapError(f"gap: have {have}, got {first} ({stage.role} of layer {layer})")
                self._fail(session, job.head, stage.stream, layer, job.caller, gap)
            return False
        return True

    def _batch(self, jobs: list[Job]) -> Batch:
        stage = jobs[0].stage
        if not stage.has_cache:
            return Batch(stage, jobs, [])
        caches = []
        for job in jobs:
            caches.append(job.session.caches_of(self._backend, stage.layer, stage.hi))
            job.session.is_computing = True
        return Batch(stage, jobs, caches)

    def _emit(self, job: Job, outputs: tuple[Array, ...]) -> None:
        """Outputs to the caller, to the host, or along the edges: to other stations and to this one itself."""
        stage = job.stage
        if job.caller is not None:
            self._emitter.answer(job, job.caller, outputs)
        elif stage.role == "head":
            self._emitter.logits(job, outputs[0])
        else:
            for edge in stage.edges or ():
                if edge.url:
                    self._emitter.forward(job, edge, outputs[edge.output])
                else:
                    self._deliver_inside(job, edge.stream, edge.layer, edge.port, outputs[edge.output])

    def _deliver_inside(self, job: Job, stream: int, layer: int, port: int, array: Array) -> None:
        self._events["messages_delivered_inside"] += 1
        session, head = job.session, job.head
        for stage in job.route.stages[stream, layer]:
            expected = INPUT_PORTS[stage.role]
            try:
                if len(expected) > 1:
                    slot = expected.index(Port(port))
                    self._join(session, job.route, stage, head, array, slot, len(expected))
                else:
                    self._arrive(session, job.route, stage, head, array, job.stage.part, None)
            except CallError as error:
                self._fail(session, head, stream, layer, None, error)

    def _acknowledge(self, session: Session, stage: Stage, head: Tensor, caller: Caller | None) -> None:
        end = head.first + head.rows
        session.passed[stage.place] = end
        self._events["acknowledgements"] += 1
        self._emitter.to_host(session, stage, caller, head, acknowledgement(end), end - 1, Port.TOKEN)

    def _poison_rows(self, job: Job) -> None:
        stage, head = job.stage, job.head
        job.session.cut_layers(stage.layer, stage.hi, head.first)
        what = f"{stage.role} of layer {stage.layer}" if stage.hi == stage.layer else f"layers {stage.layer}-{stage.hi}"
        error = PoisonedError(f"{what} gave NaN or infinity in rows {head.first} to {head.first + head.rows - 1}")
        self._poisoned(job.session, head, stage, job.caller, error)

    def _poisoned(
        self, session: Session, head: Tensor, stage: Stage, caller: Caller | None, error: PoisonedError
    ) -> None:
        self._events["poisoned"] += 1
        if head.kind != Kind.CANONICAL and caller is None:
            self._events["drafts_dropped"] += 1  # no failure of a draft touches its session
            return
        self._outbox.vent(session, head, error, caller=caller, stream=stage.stream, layer=stage.layer, is_poison=True)
        self.poison(session)

    def _drop_frame(
        self, session: Session, head: Tensor, caller: Caller | None, stream: int, event: str, why: str
    ) -> None:
        """Count what dies quietly on a chain; a call gets its one answer."""
        self._events[event] += 1
        if caller is not None:
            error = CallError(f"session {session.id} {why}: epoch {head.epoch}, rows from {head.first} are dropped")
            self._outbox.vent(session, head, error, caller=caller, stream=stream, layer=head.layer)

    def _fail(
        self,
        session: Session,
        head: Tensor,
        stream: int,
        layer: int,
        caller: Caller | None,
        error: AeonflowError,
    ) -> None:
        """An error of a pass: to the caller or the host. Drafts fail without a word on a chain."""
        if isinstance(error, OverloadedError):
            self._events["overloads"] += 1
        if head.kind != Kind.CANONICAL and caller is None:
            self._events["drafts_dropped"] += 1
            return
        self._outbox.vent(session, head, error, caller=caller, stream=stream, layer=layer)

    def _unreadable(self, caller: Caller, payload: Buffer, is_host: bool, error: BadTensorError) -> None:
        """A payload that is no tensor message: a host is told, of another station's the session's host if it shows."""
        self._events["bad_messages"] += 1
        if is_host:
            self._outbox.refuse(caller, error)
            return
        session = self._sessions.get(int.from_bytes(bytes(memoryview(payload)[:8]), "little"))
        if session is not None:
            self._outbox.vent_session(session, caller.stream, error)


def _kernel_error(error: Exception) -> AeonflowError:
    if isinstance(error, AeonflowError):
        return error
    if isinstance(error, MemoryError):
        return OverloadedError("no memory for the computation of this pass")
    return CallError(f"the kernels failed: {type(error).__name__}: {error}")
