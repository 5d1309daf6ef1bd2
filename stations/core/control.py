"""Control calls of a host: routes, sessions, where, stats, drain. Each gets exactly one answer, at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from aeonflow.errors import AeonflowError, BadMessageError, OverloadedError
from aeonflow.frames import Buffer
from aeonflow.messages import (
    Cancel,
    Close,
    Done,
    Drain,
    InstallRoute,
    Open,
    Opened,
    Reply,
    Request,
    Resume,
    Resumed,
    Stats,
    StatsReply,
    Where,
    Whereabouts,
    decode_request,
    encode,
)

from .arrivals import Arrivals
from .counters import Counters
from .limits import StationLimits
from .outbox import Outbox
from .outgoing import Caller
from .queue import JobQueue
from .routes import Routes
from .session import Relation, Session
from .sessions import SessionTable

Gauges = Callable[[], dict[str, Any]]

MAX_EPOCH = 0xFFFF_FFFF  # what the prefix of a tensor holds: beyond it no frame could ever be current again


class Control:
    """`gauges` gives what only the shell knows for Stats (links, memory, peers)."""

    def __init__(
        self,
        name: str,
        pid: int,
        started_s: float,
        limits: StationLimits,
        sessions: SessionTable,
        routes: Routes,
        queue: JobQueue,
        arrivals: Arrivals,
        outbox: Outbox,
        counters: Counters,
    ) -> None:
        self.is_draining = False
        self.gauges: Gauges = dict  # the shell's own part of Stats
        self._name = name
        self._pid = pid
        self._started_s = started_s
        self._limits = limits
        self._sessions = sessions
        self._routes = routes
        self._queue = queue
        self._arrivals = arrivals
        self._outbox = outbox
        self._counters = counters

    def receive(self, caller: Caller, payload: Buffer, now: float) -> None:
        """Carry out a request and answer it; errors are answered as VENTs."""
        try:
            reply = self._carry_out(_decode(payload), caller.link, now)
        except AeonflowError as error:
            self._counters.events["overloads"] += isinstance(error, OverloadedError)
            self._outbox.refuse(caller, error)
            return
        self._outbox.answer(caller, [encode(reply)])

    def close_session(self, session: Session, event: str) -> None:
        """Forget a session and what waits of it; `event` counts why."""
        self._counters.events[event] += 1
        self._counters.events["seeds_expired"] += len(session.seeds)
        self._sessions.close(session)
        self._arrivals.drop_queued(session, "closed_drops", "is closed")

    def link_closed(self, link: int) -> None:
        """A host is gone: so are its sessions and routes."""
        for session in self._sessions:
            if session.owner == link:
                self.close_session(session, "sessions_orphaned")
        self._routes.forget(link)

    def expire(self, now: float) -> None:
        """Close what nothing used for longer than it asked to live."""
        for session in self._sessions.expired(now):
            self.close_session(session, "sessions_expired")

    def _carry_out(self, request: Request, link: int, now: float) -> Reply:
        match request:
            case InstallRoute():
                in_use = (s.route for s in self._sessions if s.owner == link)
                self._routes.install(link, request, in_use)
                return Done()
            case Open():
                return self._open(request, link, now)
            case Close():
                session = self._sessions.get(request.session)
                if session is not None and session.owner == link:
                    self.close_session(session, "sessions_closed")
                return Done()  # closing twice is no error: the session is not open
            case Cancel():
                session = self._sessions.owned(request.session, link)
                self._counters.events["cancels"] += 1
                self._enter_epoch(session, request.epoch, request.base)
                return Done()
            case Resume():
                return self._resume(request, link, now)
            case Where():
                return self._where(request, link)
            case Stats():
                return StatsReply(self._name, self._pid, now - self._started_s, self._stats())
            case Drain():
                self.is_draining = True
                return Done()

    def _open(self, request: Open, link: int, now: float) -> Opened:
        if self.is_draining:
            raise OverloadedError("this station is draining: it takes no new session")
        route = self._routes.get(link, request.route)
        session = self._sessions.open(request, link, route.kv_layers, now)
        self._counters.events["sessions_opened"] += 1
        return Opened(session.id, session.kv_bytes, session.barriers)

    def _resume(self, request: Resume, link: int, now: float) -> Resumed:
        session = self._sessions.owned(request.session, link)
        route = self._routes.get(link, request.route)
        _check_reserved(session, route.kv_layers)
        self._enter_epoch(session, request.epoch, request.base)
        session.route = request.route
        session.last_used_s = now
        return Resumed(session.id, session.valid_rows(route.kv_layers, request.base))

    def _enter_epoch(self, session: Session, epoch: int, base: int) -> None:
        """Cancel and resume follow the rules of frames: newer is adopted, the same is fine, older changes nothing."""
        if not 0 <= epoch <= MAX_EPOCH or not 0 <= base <= session.max_positions:
            raise BadMessageError(
                f"epoch {epoch} base {base}: 0 to {MAX_EPOCH} and 0 to {session.max_positions} are possible"
            )
        relation = session.relation(epoch, base)
        if relation is Relation.NEWER:
            self._arrivals.adopt(session, epoch, base)
        elif relation is not Relation.CURRENT:
            raise BadMessageError(
                f"epoch {epoch} base {base}: session {session.id} is in epoch {session.epoch} base {session.base}"
            )

    def _where(self, request: Where, link: int) -> Whereabouts:
        session = self._sessions.get(request.session)
        if session is None or session.owner != link:
            return Whereabouts(request.session)
        passed = tuple((role, layer, position) for (role, layer), position in session.passed.items())
        return Whereabouts(session.id, session.epoch, True, session.queued + len(session.joins), passed)

    def _stats(self) -> dict[str, Any]:
        sessions = list(self._sessions)
        return {
            **self._counters.snapshot(),
            "sessions": len(sessions),
            "queued_jobs": self._queue.length,
            "queued_bytes": self._queue.num_bytes,
            "joins": sum(len(s.joins) for s in sessions),
            "seed_slots": sum(len(s.seeds) for s in sessions),
            "join_bytes": self._sessions.join_gauge.num_bytes,
            "scratch_rows": max((len(s.scratch) for s in sessions), default=0),
            "kv_bytes": sum(s.cached_bytes() for s in sessions),
            "kv_reserved_bytes": self._sessions.reserved_bytes,
            "kv_budget_bytes": self._limits.kv_budget_bytes,
            "kv_sessions": self._kv_sessions(),
            **self._overlay_heads(),
            "is_draining": self.is_draining,
            **self.gauges(),
        }

    def _kv_sessions(self) -> dict[str, int]:
        """Open sessions by how their KV is kept."""
        return dict(Counter(str(session.layout.options) for session in self._sessions))

    def _overlay_heads(self) -> dict[str, int]:
        """Query heads of sealed O(1) layers, and those that kept their far field."""
        caches = [cache for session in self._sessions for cache in session.caches.values()]
        reports = [cache.o1_report for cache in caches if cache.o1_report is not None]
        return {
            "overlay_heads": sum(report.heads for report in reports),
            "overlay_far_heads": sum(report.heads_with_far_field for report in reports),
        }


def _check_reserved(session: Session, kv_layers: tuple[int, ...]) -> None:
    """A session may move to a route on which it caches no more than it reserved. BadMessageError otherwise."""
    needed = session.layout.reserved_bytes(kv_layers, session.max_positions)
    if needed > session.kv_bytes:
        raise BadMessageError(
            f"session {session.id} reserved {session.kv_bytes:,} bytes of KV, {len(kv_layers)} layers need {needed:,}:"
            " open it on that route"
        )


def _decode(payload: Buffer) -> Request:
    try:
        return decode_request(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadMessageError(
            f"control request of {memoryview(payload).nbytes} bytes cannot be read: {error}"
        ) from None
