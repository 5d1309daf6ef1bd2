"""The way in of a pass: tensors checked, epochs adopted, inputs joined, jobs queued.

The order of tests is part of the protocol (`docs/protocol.md`, *Epochs*): stale frames die before anything else is
looked at, and a frame is checked before its newer epoch is adopted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from aeonflow.errors import (
    BadTensorError,
    CallError,
    NotForYouError,
    OverloadedError,
    PoisonedError,
    ProtocolError,
    SeedError,
    UnknownSessionError,
)
from aeonflow.frames import Buffer
from aeonflow.tensors import Kind, Port, Tensor, Want, unpack_tensors

from .counters import Counters
from .emit import Emitter, acknowledgement
from .failures import Failures
from .forms import LADDER
from .intake import Intake, find_stages
from .joins import Part, add_slices, sum_parts
from .limits import StationLimits
from .outbox import Outbox
from .outgoing import Caller
from .queue import Job, JobQueue
from .routes import Routes
from .session import Relation, Session
from .sessions import SessionTable
from .shadows import Shadows
from .stages import CompiledRoute, Edge, Stage

Array = npt.NDArray[Any]


class Arrivals:
    """Fills the queue. Sessions, routes and the outbox are shared with the control calls."""

    def __init__(
        self,
        queue: JobQueue,
        limits: StationLimits,
        intake: Intake,
        sessions: SessionTable,
        routes: Routes,
        outbox: Outbox,
        counters: Counters,
        emitter: Emitter,
        failures: Failures,
        shadows: Shadows,
    ) -> None:
        self._queue = queue
        self._limits = limits
        self._intake = intake
        self._sessions = sessions
        self._routes = routes
        self._outbox = outbox
        self._events = counters.events
        self._emitter = emitter
        self._failures = failures
        self._shadows = shadows

    def receive(
        self, link: int, stream: int, sequence: int, role: str, payload: Buffer, is_host: bool, now: float
    ) -> None:
        """A tensor message from a host (`is_host`) or from another station."""
        try:
            tensors = unpack_tensors(payload)
        except BadTensorError as error:
            self._failures.unreadable(Caller(link, stream, sequence), payload, is_host, error)
            return
        head = tensors[0]
        session = self._sessions.get(head.session)
        if session is None or (is_host and session.owner != link):
            self._events["unknown_sessions"] += 1
            if is_host:
                unknown = UnknownSessionError(f"session {head.session} is not open here")
                self._outbox.refuse(Caller(link, stream, sequence), unknown, head.session)
            return
        caller = Caller(link, stream, sequence) if head.route == 0 else None
        try:
            if caller is not None and not is_host:
                raise NotForYouError("a station's key permits forwarding along a route, not calls")
            is_current = head.epoch == session.epoch and head.base == session.base
            if (session.is_poisoned or not is_current) and self._is_void(session, head, caller, stream):
                return
            session.last_used_s = now
            route = self._routes.get(session.owner, head.route)
            stages = find_stages(route, stream, role, tensors)
            self._intake.check_rows(head, session.max_positions)
            arrays = [self._intake.array(tensor, stages[0]) for tensor in tensors]
            if not is_current:
                self.adopt(session, head.epoch, head.base)
            for stage in stages:
                self._accept(session, route, stage, tensors, arrays, caller)
        except (CallError, ProtocolError) as error:
            self._events["bad_messages"] += 1
            self._failures.fail(session, head, stream, head.layer, caller, error)

    def deliver_inside(self, job: Job, edge: Edge, outputs: Sequence[Array]) -> None:
        """An output of `job`, or two, whose successor is this station itself."""
        self._events["messages_delivered_inside"] += 1
        session, head, route = job.session, job.head, job.route
        for stage in route.takers(edge.stream, edge.layer, head.kind) or ():
            try:
                if edge.also < 0:
                    self._arrive(session, route, stage, head, outputs[edge.output], edge.port, job.stage.part, None)
                else:
                    ports = job.stage.outputs
                    both = {ports[index]: outputs[index] for index in (edge.output, edge.also)}
                    self._enter(session, route, stage, head, [both[port] for port in stage.inputs], None)
            except CallError as error:
                self._failures.fail(session, head, edge.stream, edge.layer, None, error)

    def arrived(
        self, session: Session, route: CompiledRoute, stage: Stage, head: Tensor, array: Array, port: int
    ) -> None:
        """An input of a stage that came by another way than a message of its own. CallError as for any other."""
        self._arrive(session, route, stage, head, array, port, 0, None)

    def adopt(self, session: Session, epoch: int, base: int) -> None:
        """The one way into a newer epoch: caches cut, joins dropped, queued jobs of older epochs dropped."""
        self._events["epochs"] += 1
        self._forget_seeds(session)
        session.adopt(epoch, base)
        self.drop_queued(session, "stale_jobs", "has left that epoch")

    def _forget_seeds(self, session: Session) -> None:
        """Slots that wait end with their epoch. Half a draft is of no consequence, and counted apart."""
        awaited = session.seeds.num_awaited
        self._events["seeds_expired"] += awaited
        self._events["drafts_unfinished"] += session.seeds.clear() - awaited

    def drop_queued(self, session: Session, event: str, why: str) -> None:
        """Remove everything of a session from the queue; calls are answered, chain jobs counted."""
        if session.queued:
            for job in self._queue.drop(lambda job: job.session is session):
                self._failures.drop_job(job, event, why)

    def cancel_call(self, caller: Caller) -> None:
        """A caller VENTed its own call: what waits of it is dropped without an answer."""
        self._events["cancels"] += len(self._queue.drop(lambda job: job.caller == caller))

    def poison(self, session: Session) -> None:
        """Nothing of this session's epoch is to be trusted: drop what waits of it until the host starts another."""
        session.is_poisoned = True
        session.joins.clear()
        self._forget_seeds(session)
        self.drop_queued(session, "poisoned_frames", "is poisoned")

    def poisoned(
        self, session: Session, head: Tensor, stage: Stage, caller: Caller | None, error: PoisonedError
    ) -> None:
        """Rows of a pass are not to be trusted: its host is told. No failure of a draft touches its session."""
        self._events["poisoned"] += 1
        if head.kind != Kind.CANONICAL and caller is None:
            self._events["drafts_dropped"] += 1
            return
        self._outbox.vent(session, head, error, caller=caller, stream=stage.stream, layer=stage.layer, is_poison=True)
        self.poison(session)

    def _is_void(self, session: Session, head: Tensor, caller: Caller | None, stream: int) -> bool:
        """True for a frame of an older epoch or a poisoned one, after counting it. ProtocolError on a conflict."""
        relation = session.relation(head.epoch, head.base)
        if relation is Relation.NEWER:
            return False
        if relation is Relation.CONFLICT:
            raise ProtocolError(f"epoch {head.epoch} has base {session.base}, a frame says {head.base}")
        if relation is Relation.STALE:
            self._failures.drop(session, head, caller, stream, "stale_frames", "has left that epoch")
        else:
            self._failures.drop(session, head, caller, stream, "poisoned_frames", "is poisoned")
        return True

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
        head, inputs = tensors[0], stage.inputs
        if stage.has_cache and head.kind:
            self._failures.drop(session, head, caller, stage.stream, "drafts_dropped", "takes no draft at a cache")
        elif len(arrays) == 1 and (len(inputs) == 1 or caller is None or stage.joined_slices == 1):
            self._arrive(session, route, stage, head, arrays[0], head.port, head.options >> 3, caller)
        else:
            ports = [tensor.port for tensor in tensors]
            if sorted(ports) != list(inputs) or stage.joined_slices:
                named = ", ".join(Port(port).name for port in ports)
                wanted = " and ".join(Port(port).name for port in inputs)
                how = "each in a message of its own" if stage.joined_slices else "in one message of a call"
                raise BadTensorError(f"{stage.role} was given {named}: {wanted} are expected, {how}")
            self._enter(session, route, stage, head, [arrays[ports.index(port)] for port in inputs], caller)

    def _arrive(
        self,
        session: Session,
        route: CompiledRoute,
        stage: Stage,
        head: Tensor,
        array: Array,
        port: int,
        part: int,
        caller: Caller | None,
    ) -> None:
        """One input, from outside or from this station itself: it waits for the others, or enters."""
        if stage.slots == 1:
            self._enter(session, route, stage, head, [array], caller)
        else:
            self._join(session, route, stage, head, array, stage.slot(port, part), caller)

    def _enter(
        self,
        session: Session,
        route: CompiledRoute,
        stage: Stage,
        head: Tensor,
        inputs: list[Array],
        caller: Caller | None,
    ) -> None:
        """All inputs of a pass are here: acknowledged where nothing is to be computed, else queued."""
        if stage.role == "head":
            want = head.want
            if want is Want.NONE:
                self._acknowledge(session, stage, head, caller)
                return
            self._intake.check_answer(head, stage)
            if want is Want.LAST:
                inputs = [array[-1:] for array in inputs]
        if stage.joined_slices:
            x = add_slices(inputs)
            inputs = [x, inputs[0]] if stage.form == LADDER else [x]
        elif stage.joined_embeds:
            inputs = [sum_parts(inputs)]
        if stage.shadowed and not head.kind:
            self._shadows.chain_delivered(session, stage, stage.shadowed, head, inputs[0])
        self._push(session, route, stage, head, tuple(inputs), caller)

    def _join(
        self,
        session: Session,
        route: CompiledRoute,
        stage: Stage,
        head: Tensor,
        array: Array,
        slot: int,
        caller: Caller | None,
    ) -> None:
        if caller is not None and not session.joins.is_open(stage.key, head):
            raise SeedError(f"layer {head.layer} was given f, its residual seed of position {head.first} has not come")
        if len(session.joins) >= self._limits.max_joins:
            raise OverloadedError(f"{len(session.joins)} joins of the session wait: at most {self._limits.max_joins}")
        self.check_room(array.nbytes)
        try:
            joined = session.joins.add(stage.key, stage.slots, slot, array, head)
        except PoisonedError as error:
            self.poisoned(session, head, stage, None, error)
            return
        if joined is Part.WAITING:
            return
        if isinstance(joined, Part):
            self._failures.drop(session, head, caller, stage.stream, "duplicate_parts", "has that part already")
            return
        whole, parts = joined
        self._enter(session, route, stage, whole, parts, caller)

    def _push(
        self,
        session: Session,
        route: CompiledRoute,
        stage: Stage,
        head: Tensor,
        inputs: tuple[Array, ...],
        caller: Caller | None,
    ) -> None:
        if self._queue.length >= self._limits.max_queued_jobs:
            raise OverloadedError(f"{self._queue.length} jobs wait: at most {self._limits.max_queued_jobs}")
        job = Job(stage, route, session, head, inputs, caller)
        self.check_room(job.num_bytes)
        self._queue.push(job)

    def check_room(self, num_bytes: int) -> None:
        """OverloadedError when so many bytes more may not wait here."""
        waiting = self._queue.num_bytes + self._sessions.join_gauge.num_bytes
        if waiting + num_bytes > self._limits.max_queued_bytes:
            raise OverloadedError(
                f"{waiting:,} bytes wait for compute, {num_bytes:,} more do not fit {self._limits.max_queued_bytes:,}"
            )

    def _acknowledge(self, session: Session, stage: Stage, head: Tensor, caller: Caller | None) -> None:
        end = head.first + head.rows
        session.passed[stage.place] = end
        self._events["acknowledgements"] += 1
        self._emitter.to_host(session, stage, caller, head, acknowledgement(end), end - 1, Port.TOKEN)
