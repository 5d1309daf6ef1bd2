"""The synchronous station: messages in, effects out (`aeonflow` stations, design *Stations*).

`receive` takes a message, `next_batch` gives work, `compute` does it (in any thread, one batch at a time), `finish`
sends it on, `take_outgoing` hands out the effects. No clock, no socket, no task: time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from aeonflow import bands
from aeonflow.errors import (
    AeonflowError,
    NotForYouError,
    StationLostError,
    UnknownStreamError,
    UnsupportedError,
)
from aeonflow.frames import Buffer, Flags
from aeonflow.messages import decode_vent
from aeonflow.tensors import Kind, unpack_tensors
from aeonflow.trace import Recorder

from ..kernels.base import F32, Backend
from ..models.card import ModelCard
from ..models.roles import RoleSpan
from .arrivals import Arrivals
from .batch import Batch, compute
from .control import Control
from .counters import Counters
from .departures import Departures
from .drafts import SeededPasses
from .emit import Emitter
from .failures import Failures
from .intake import Intake
from .kv_layout import NO_SINKS
from .limits import StationLimits
from .outbox import Outbox
from .outgoing import Caller, Outgoing
from .queue import JobQueue
from .routes import Routes
from .seed_port import SeedPort
from .sessions import SessionTable
from .shadows import Shadows
from .trace import Traces

_ROLES = bands.STREAM_ROLES
_IN_ERROR = int(Flags.VENT | Flags.POISON)
_NOT_BUILT = {
    bands.KV_SLAB: "KV slabs",
    bands.VOLUME_CAPTURE: "volumes",
    bands.VOLUME_REPLAY: "volumes",
}


class Station:
    """One station over one backend. `in_process`: it lives inside the host, so its messages are no hops. `sinks`:
    learned logits f32 [query heads] of the layers it caches, where the model has them.

    Links are known by number: `link_opened(link, is_host)` before the first message of each, `link_closed` after the
    last. Only hosts may call; other stations may forward tensors.
    """

    def __init__(
        self,
        name: str,
        card: ModelCard,
        spans: Sequence[RoleSpan],
        backend: Backend,
        limits: StationLimits,
        *,
        now: float,
        pid: int = 0,
        in_process: bool = False,
        sinks: Mapping[int, F32] = NO_SINKS,
    ) -> None:
        self.name = name
        self.card = card
        self.spans = tuple(spans)
        self.limits = limits
        self.counters = Counters()
        self._events = self.counters.events
        self.backend = backend
        self._hosts: dict[int, bool] = {}
        self._outbox = Outbox(name, self.counters)
        self.take_outgoing: Callable[[], list[Outgoing]] = self._outbox.take
        self.sessions = SessionTable(limits, card, sinks)
        self._routes = Routes(self.spans, card.num_layers, card.residual, limits.max_routes)
        self.queue = JobQueue(limits)
        crossing = 0 if in_process else 1
        emitter = Emitter(self._outbox, self.counters, crossing)
        intake, shadows = Intake(card, limits), Shadows(limits, self.counters)
        failures = Failures(self.sessions, self._outbox, self.counters)
        self._arrivals = Arrivals(
            self.queue, limits, intake, self.sessions, self._routes, self._outbox, self.counters,
            emitter, failures, shadows,
        )  # fmt: skip
        self._seed_port = SeedPort(
            limits, intake, self.sessions, self._routes, self._outbox, self.counters, failures, self._arrivals, shadows,
            crossing,
        )  # fmt: skip
        seeded = SeededPasses(card.vocab_size, self._seed_port, self._arrivals, emitter, failures, self.counters)
        self._departures = Departures(
            self.queue, self._arrivals, self.counters, emitter, failures, self._seed_port, seeded
        )
        self._control = Control(
            name, pid, now, limits, self.sessions, self._routes, self.queue, self._arrivals, self._outbox,
            self.counters,
        )  # fmt: skip
        self._traces = Traces(self.queue, self._outbox)
        self.trace: Recorder | None = None  # while a host has asked for a trace
        self.next_batch: Callable[[], Batch | None] = self._departures.next_batch

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        return self.queue.length

    @property
    def is_draining(self) -> bool:
        return self._control.is_draining

    @is_draining.setter
    def is_draining(self, value: bool) -> None:
        self._control.is_draining = value

    def last_used_s(self) -> float:
        """When a pass last came for any open session; minus infinity when none is open."""
        return max((session.last_used_s for session in self.sessions), default=float("-inf"))

    @property
    def route_changes(self) -> int:
        """Routes installed so far."""
        return self._routes.changes

    def dial_urls(self) -> set[str]:
        """The only addresses this station may dial: successors on installed routes."""
        return self._routes.urls()

    def use_gauges(self, gauges: Callable[[], dict[str, Any]]) -> None:
        """What the shell adds to every Stats reply."""
        self._control.gauges = gauges

    def use_clock(self, clock: Callable[[], float]) -> None:
        """The clock of traces, in seconds; without one the station records none."""
        self._traces.clock = clock

    def link_opened(self, link: int, is_host: bool) -> None:
        """A connection is up; `is_host`: it showed the fleet's secret, not only a station's key."""
        self._hosts[link] = is_host

    def link_closed(self, link: int) -> None:
        """A connection is gone; a host's sessions and routes go with it."""
        if self._hosts.pop(link, False):
            self._control.link_closed(link)
            self._traces.link_closed(link)
            self.trace = self._traces.recorder

    def receive(self, link: int, stream: int, sequence: int, flags: Flags, payload: Buffer, now: float) -> None:
        """Take one message. Whatever it holds, nothing is raised: errors become VENTs or are counted."""
        self._events["messages_in"] += 1
        role = _ROLES.get(stream)
        if role is not None and not int(flags) & _IN_ERROR:
            self._arrivals.receive(link, stream, sequence, role, payload, self._hosts[link], now)
        else:
            self._receive_other(Caller(link, stream, sequence), flags, payload, now)

    def compute(self, batch: Batch) -> None:
        """Run the kernels of a batch. The only part that may run in another thread."""
        compute(batch, self.backend)

    def finish(self, batch: Batch, seconds: float) -> None:
        """Send on the outputs of a batch that took `seconds` to compute."""
        role = batch.stage.role if batch.jobs[0].head.kind == Kind.CANONICAL else f"draft {batch.stage.role}"
        self.counters.computed(role, len(batch.jobs), batch.rows, seconds)
        self._departures.finish(batch)

    def tick(self, now: float) -> None:
        """Once a second: expire idle sessions, and slots that wait for seeds that were lost."""
        self._control.expire(now)
        self._seed_port.expire(now)

    def station_lost(self, url: str, reason: str) -> None:
        """A successor is gone or cannot be reached: the hosts of every session that goes through it are told."""
        self._events["stations_lost"] += 1
        for session in self.sessions:
            route = self._routes.find(session.owner, session.route)
            if route is not None and url in route.names:
                error = StationLostError(f"station {route.names[url]} at {url} is lost to {self.name}: {reason}")
                self._outbox.vent_session(session, bands.HEAD, error)

    def unsent(self, outgoing: Outgoing, error: AeonflowError) -> None:
        """The shell could not send a tensor message; its host is told."""
        self._outbox.vent_unsent(outgoing, self.sessions, error)

    def _receive_other(self, caller: Caller, flags: Flags, payload: Buffer, now: float) -> None:
        stream, is_host = caller.stream, self._hosts[caller.link]
        if bands.is_seed(stream):
            self._seed_port.receive(caller.link, stream, caller.sequence, payload, is_host, now)
        elif flags & Flags.POISON:
            self._receive_poison(caller.link, is_host, flags, payload)
        elif flags & Flags.VENT:
            self._arrivals.cancel_call(caller)
        elif not is_host:
            self._events["bad_messages"] += 1
            self._outbox.refuse(caller, NotForYouError(f"stream {stream:04x}: a station's key permits forwarding only"))
        elif stream == bands.CONTROL:
            self._control.receive(caller, payload, now)
        elif stream == bands.TRACES:
            self._traces.receive(caller, payload)
            self.trace = self._traces.recorder
        elif stream in _NOT_BUILT:
            self._outbox.refuse(
                caller, UnsupportedError(f"{_NOT_BUILT[stream]} (stream {stream:04x}) are not built yet")
            )
        else:
            self._events["bad_messages"] += 1
            self._outbox.refuse(caller, UnknownStreamError(f"stream {stream:04x} is unknown"))

    def _receive_poison(self, link: int, is_host: bool, flags: Flags, payload: Buffer) -> None:
        """What was sent for a session is not to be trusted: nothing of its epoch is computed any more."""
        try:
            if flags & Flags.VENT:
                vent = decode_vent(payload)
                session_id, epoch = vent.session, vent.epoch
            else:
                head = unpack_tensors(payload)[0]
                session_id, epoch = head.session, head.epoch
        except (AeonflowError, msgspec.DecodeError):
            self._events["bad_messages"] += 1
            return
        session = self.sessions.get(session_id)
        if session is None or session.epoch != epoch or (is_host and session.owner != link):
            self._events["stale_frames"] += 1
            return
        self._events["poisoned"] += 1
        self._arrivals.poison(session)
