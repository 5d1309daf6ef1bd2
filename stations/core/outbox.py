"""What leaves the core: answers, forwards and errors, collected as values until the shell takes them."""

from __future__ import annotations

from collections.abc import Sequence

from aeonflow.errors import AeonflowError
from aeonflow.frames import Buffer, Flags
from aeonflow.messages import Vent, encode
from aeonflow.tensors import PREFIX, Kind, Tensor

from .addresses import HOST
from .counters import Counters
from .outgoing import FIN, UNASKED_FIRST, UNASKED_MASK, VENT, VENT_POISON, Caller, Outgoing, ToLink, ToStation
from .session import Session
from .sessions import SessionTable


class Outbox:
    """Effects in the order in which they arose."""

    def __init__(self, station: str, counters: Counters) -> None:
        self._station = station
        self._events = counters.events
        self._waiting: list[Outgoing] = []
        self._unasked = 0
        self.put = self._waiting.append

    def take(self) -> list[Outgoing]:
        """Everything that waits; the outbox is empty afterwards."""
        taken = self._waiting[:]
        self._waiting.clear()
        return taken

    def answer(self, caller: Caller, pieces: Sequence[Buffer], flags: Flags = FIN) -> None:
        """The reply of a call."""
        self.put(ToLink(caller.link, caller.stream, caller.sequence, pieces, flags))

    def unasked(self, link: int, stream: int, pieces: Sequence[Buffer], flags: Flags = FIN) -> None:
        """A result or an error that the host matches by its content."""
        self._unasked = self._unasked + 2 & UNASKED_MASK
        self.put(ToLink(link, stream, UNASKED_FIRST | self._unasked, pieces, flags))

    def send_on(
        self,
        url: str,
        session: Session,
        stream: int,
        pieces: Sequence[Buffer],
        flags: Flags = FIN,
        sequence: int | None = None,
    ) -> None:
        """What goes along a route: to the station at `url`, or by the session's host where that is HOST."""
        if url != HOST:
            self.put(ToStation(url, stream, pieces, flags, session.id, sequence))
        elif sequence is None:
            self.unasked(session.owner, stream, pieces, flags)
        else:
            self.put(ToLink(session.owner, stream, sequence, pieces, flags))

    def refuse(self, caller: Caller, error: AeonflowError, session: int = 0) -> None:
        """VENT a call about which no more is known than who made it."""
        self._events["vents"] += 1
        self.answer(caller, [encode(Vent(error.code, str(error), self._station, session))], VENT)

    def vent(
        self,
        session: Session,
        head: Tensor,
        error: AeonflowError,
        *,
        caller: Caller | None,
        stream: int,
        layer: int,
        is_poison: bool = False,
    ) -> None:
        """An error of a pass: to its caller, or on a chain to the host of the session. Never under an older epoch."""
        self._events["vents"] += 1
        epoch = max(head.epoch, session.epoch)
        vent = Vent(error.code, str(error), self._station, session.id, epoch, head.kind, head.first, layer)
        flags = VENT_POISON if is_poison else VENT
        if caller is not None:
            self.answer(caller, [encode(vent)], flags)
        else:
            self.unasked(session.owner, stream, [encode(vent)], flags)

    def vent_session(self, session: Session, stream: int, error: AeonflowError) -> None:
        """An error of a session that no single pass is to blame for."""
        self._events["vents"] += 1
        vent = Vent(error.code, str(error), self._station, session.id, max(session.epoch, 0))
        self.unasked(session.owner, stream, [encode(vent)], VENT)

    def vent_unsent(self, outgoing: Outgoing, sessions: SessionTable, error: AeonflowError) -> None:
        """A tensor message could not be sent (too large for that peer): its host learns which one, drafts aside."""
        session_id, epoch, _, _, first, _, layer, kind, _, _, _, route, *_ = PREFIX.unpack_from(outgoing.pieces[0])
        if kind != Kind.CANONICAL and route:
            self._events["drafts_dropped"] += 1
            return
        vent = encode(Vent(error.code, str(error), self._station, session_id, epoch, kind, first, layer))
        if isinstance(outgoing, ToLink):
            self._events["vents"] += 1
            self.put(ToLink(outgoing.link, outgoing.stream, outgoing.sequence, [vent], VENT))
        elif (session := sessions.get(session_id)) is not None:
            self._events["vents"] += 1
            self.unasked(session.owner, outgoing.stream, [vent], VENT)
