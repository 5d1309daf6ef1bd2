"""The residual-seed port: seeds out with the passes of a stage, seeds in to their slots, and what a full slot starts.

Seeds are one-way and best effort: nothing is answered, and what cannot be used is counted and dropped. One exception:
rows are computed from canonical seeds, so one that is damaged, contradicts another or comes with the wrong sign ends
the session's epoch (POISON), and the host is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy.typing as npt

from aeonflow import fano
from aeonflow.bands import SEED_FIRST
from aeonflow.errors import AeonflowError, BadTensorError, CallError, FrameTooLargeError, ProtocolError, SeedError
from aeonflow.frames import Buffer
from aeonflow.passes import PassContext, destination_layer, is_genuine
from aeonflow.tensors import GROW, MAX_HOP, Kind, Port, Tensor, unpack_tensors

from .arrivals import Arrivals
from .counters import Counters
from .failures import Failures
from .intake import Intake
from .limits import StationLimits
from .outbox import Outbox
from .outgoing import FIN
from .queue import Job
from .routes import Routes
from .seed_routes import INPUT, SeedEdge, SeedRule
from .seeds import Completed, Refusal, nibble, signed_sum
from .session import Relation, Session
from .sessions import SessionTable
from .shadows import Shadows
from .stages import CompiledRoute, Stage

Array = npt.NDArray[Any]
_CANONICAL, _DRAFT = int(Kind.CANONICAL), int(Kind.DRAFT)

SEED_AGE_S = 30.0  # a slot that waits longer is forgotten: what it waits for was lost

_EVENTS = {
    Refusal.DUPLICATE: "seeds_duplicate",
    Refusal.CONFLICT: "seeds_conflict",
    Refusal.LATE: "seeds_late",
    Refusal.UNEXPECTED: "seeds_unknown",
    Refusal.WRONG_SIGN: "seeds_wrong_sign",
    Refusal.OVER_LIMIT: "seeds_over_limit",
}

# What a full slot of a mode starts: session, route, stage, completed contributions.
Start = Callable[[Session, CompiledRoute, Stage, Completed], None]


class SeedPort:
    """`starts` says for each mode what a full slot does; "shadow" and "bypass" are here."""

    def __init__(
        self,
        limits: StationLimits,
        intake: Intake,
        sessions: SessionTable,
        routes: Routes,
        outbox: Outbox,
        counters: Counters,
        failures: Failures,
        arrivals: Arrivals,
        shadows: Shadows,
        crossing: int,
    ) -> None:
        self._limits = limits
        self._intake = intake
        self._sessions = sessions
        self._routes = routes
        self._outbox = outbox
        self._counters = counters
        self._events = counters.events
        self._failures = failures
        self._arrivals = arrivals
        self._crossing = crossing
        self.starts: dict[str, Start] = {
            "shadow": lambda session, route, stage, done: shadows.compare(stage.layer, done),
            "bypass": self._bypass,
        }

    # Out.

    def send(self, job: Job, outputs: tuple[Array, ...]) -> None:
        """The seeds of a pass that a stage has computed."""
        self._send_all(job, job.stage.seeds, outputs)

    def send_early(self, job: Job) -> None:
        """The seeds of a pass whose input is whole: they leave before it is computed."""
        self._send_all(job, job.stage.early, ())

    def _send_all(self, job: Job, edges: Sequence[SeedEdge], outputs: tuple[Array, ...]) -> None:
        for edge in edges:
            head, array = job.head, job.inputs[0] if edge.source == INPUT else outputs[edge.source]
            if edge.needs_grow:
                if not head.options & GROW:
                    continue
                head, array = _last_row(head), array[-1:]
                self._events["drafts_grown"] += job.stage.role == "attn"
            try:
                self._send(job, edge, head, array)
            except FrameTooLargeError as error:  # the host keeps passes below this; never silently
                self._events["seeds_over_limit"] += 1
                if edge.kind == _CANONICAL:
                    self._failures.fail_job(job, job.stage.layer, error)

    def _send(self, job: Job, edge: SeedEdge, head: Tensor, array: Array) -> None:
        if not edge.url:
            self._counters.seed_sent(edge.line)
            self._deliver_inside(job, edge, head, array)
            return
        context = PassContext.of(head, kind=edge.kind, hop=min(head.hop + self._crossing, MAX_HOP))
        jump = context.alpha_jump(edge.line, edge.sign, array.data, edge.src_layer, edge.url, head.first)
        self._counters.seed_sent(edge.line)
        self._outbox.send_on(jump.dst, job.session, jump.stream, jump.pieces, FIN, jump.sequence)

    def _deliver_inside(self, job: Job, edge: SeedEdge, head: Tensor, array: Array) -> None:
        layer = destination_layer(edge.line, edge.src_layer)
        head = msgspec.structs.replace(head, kind=edge.kind, layer=layer, port=int(Port.SEED))
        self._counters.seed_received(edge.line)
        target = job.route.seeded.get((edge.line, layer, edge.kind))
        if target is None:
            self._drop("seeds_unknown")
        else:
            self._take(job.session, job.route, *target, nibble(edge.line, edge.sign), head, array)

    # In.

    def receive(self, link: int, stream: int, sequence: int, payload: Buffer, is_host: bool, now: float) -> None:
        """A seed from another station, or from a host that relays."""
        bit = stream - SEED_FIRST
        line = bit >> 1
        self._counters.seed_received(line)
        try:
            tensors = unpack_tensors(payload)
        except BadTensorError:
            self._drop("seeds_corrupt")
            return
        head = tensors[0]
        session = self._sessions.get(head.session)
        if session is None or (is_host and session.owner != link):
            self._drop("seeds_unknown")
            return
        if session.epoch > head.epoch and head.kind == _DRAFT:
            self._events["drafts_stale"] += 1  # nothing is lost: a draft of an older epoch is of no use
            return
        if session.epoch > head.epoch or (session.is_poisoned and session.epoch == head.epoch):
            self._drop("seeds_late")
            return
        try:
            route = self._routes.get(session.owner, head.route)
        except BadTensorError:
            self._drop("seeds_unknown")
            return
        target = route.seeded.get((line, head.layer, head.kind))
        if target is None or (head.route == 0 and not is_host):
            self._drop("seeds_unknown")
            return
        stage, rule = target
        try:
            array = self._checked(session, tensors, sequence)
            if session.relation(head.epoch, head.base) is Relation.CONFLICT:
                raise ProtocolError(f"epoch {head.epoch} has base {session.base}, a seed says {head.base}")
        except (CallError, ProtocolError) as error:
            self._drop("seeds_corrupt")
            if head.kind == _CANONICAL:
                self._poison(session, stage, head, error)
            return
        if session.epoch < head.epoch:
            self._arrivals.adopt(session, head.epoch, head.base)
        session.last_used_s = now
        self._take(session, route, stage, rule, bit, head, array)

    def expire(self, now: float) -> None:
        """Forget slots that have waited too long."""
        for session in self._sessions:
            if len(session.seeds):
                self._events["seeds_expired"] += session.seeds.expire(now - SEED_AGE_S)

    def _checked(self, session: Session, tensors: list[Tensor], sequence: int) -> Array:
        """The rows of a seed. BadTensorError for one that is not what it should be."""
        head = tensors[0]
        if sequence != head.first:
            raise BadTensorError(f"seed of position {head.first} under sequence {sequence}")
        self._intake.check_rows(head, session.max_positions)
        array = self._intake.hidden_rows(head)
        if len(tensors) > 2 or (head.kind == _CANONICAL and len(tensors) != 2):
            raise BadTensorError(f"a seed of {len(tensors)} tensors: rows, and their fingerprint, are expected")
        if len(tensors) == 2 and not is_genuine(head, tensors[1]):
            raise BadTensorError(f"the seed of position {head.first} for layer {head.layer} is not what was sent")
        return array

    def _take(
        self, session: Session, route: CompiledRoute, stage: Stage, rule: SeedRule, bit: int, head: Tensor, array: Array
    ) -> None:
        """One checked contribution: kept, dropped, or the last that its slot waits for."""
        try:
            self._arrivals.check_room(array.nbytes)
            done = session.seeds.add(
                head.kind, head.layer, rule.expected, bit, array, head, session.last_used_s, self._limits.max_seed_slots
            )
        except CallError as error:
            self._drop("seeds_over_limit")
            if head.kind == _CANONICAL:
                self._failures.fail(session, head, stage.stream, stage.layer, None, error)
            return
        if isinstance(done, Completed):
            if rule.mode != "shadow":  # which counts its comparisons itself, whoever comes last
                self._events["seeds_completed"] += 1
            self.starts[rule.mode](session, route, stage, done)
        elif done is not Refusal.WAITING:
            self._drop(_EVENTS[done])
            if head.kind == _CANONICAL and done in (Refusal.CONFLICT, Refusal.WRONG_SIGN, Refusal.OVER_LIMIT):
                line = fano.LINES[bit >> 1].points
                named = "".join(map(str, line))
                what = CallError(f"seed of line {named} for layer {head.layer}, position {head.first}: {done.value}")
                self._poison(session, stage, head, what)

    def _bypass(self, session: Session, route: CompiledRoute, stage: Stage, done: Completed) -> None:
        """h of the layer below has come; with f, which DOWN sends, it makes this layer's input."""
        try:
            self._arrivals.arrived(session, route, stage, done.head, signed_sum(done), int(Port.H))
        except CallError as error:
            self._failures.fail(session, done.head, stage.stream, stage.layer, None, error)

    def _poison(self, session: Session, stage: Stage, head: Tensor, error: AeonflowError) -> None:
        self._arrivals.poisoned(session, head, stage, None, SeedError(str(error)))

    def _drop(self, event: str) -> None:
        self._events[event] += 1
        self._events["seeds_dropped"] += 1


def _last_row(head: Tensor) -> Tensor:
    """The pass of the one row that a draft grows from. Options say nothing of drafts: none is asked for or answered."""
    return msgspec.structs.replace(head, first=head.first + head.rows - 1, rows=1, options=0)
