"""All sessions of a station: opened against limits and a budget of KV bytes, expired, dropped with their host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aeonflow.errors import BadMessageError, OverloadedError, UnknownSessionError
from aeonflow.kv_options import parse_kv_options
from aeonflow.messages import Open

from ..kv.streams import F32
from ..models.card import ModelCard
from .joins import JoinGauge
from .kv_layout import KvLayout
from .limits import StationLimits
from .session import Session

MAX_IDLE_S = 24 * 3600.0


class SessionTable:
    """`reserved_bytes`: what open sessions reserved of the KV budget."""

    def __init__(self, limits: StationLimits, card: ModelCard, sinks: Mapping[int, F32]) -> None:
        self._limits = limits
        self._card = card
        self._sinks = sinks  # learned logits of the layers cached here, where the model has them
        self._sessions: dict[int, Session] = {}
        self.get = self._sessions.get
        self.reserved_bytes = 0
        self.join_gauge = JoinGauge()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def open(self, request: Open, owner: int, kv_layers: Sequence[int], now: float) -> Session:
        """Reserve KV for `kv_layers` and enter a session.

        OverloadedError, UnsupportedError or BadMessageError, with the numbers.
        """
        if request.session in self._sessions:
            raise BadMessageError(f"session {request.session} is open already")
        if not 0 <= request.session < 1 << 64:
            raise BadMessageError(f"session {request.session}: ids are 0 to 2^64 - 1")
        layout = KvLayout(self._card, parse_kv_options(request.cache), self._sinks)
        context_length = layout.options.max_positions(self._card.context_length)
        if not 1 <= request.max_positions <= context_length:
            raise BadMessageError(
                f"a session of {request.max_positions} positions: 1 to {context_length} fit the context"
            )
        if not 0 < request.idle_s <= MAX_IDLE_S:
            raise BadMessageError(f"idle_s {request.idle_s}: more than 0 and at most {MAX_IDLE_S:g}")
        o1 = layout.options.o1
        if o1 is not None and o1.layers is not None and not set(o1.layers) <= set(range(self._card.num_layers)):
            raise BadMessageError(f"cache option o1 of layers {list(o1.layers)}: the model has {self._card.num_layers}")
        if len(self._sessions) >= self._limits.max_sessions:
            raise OverloadedError(f"{len(self._sessions)} sessions are open: at most {self._limits.max_sessions}")
        needed = layout.reserved_bytes(kv_layers, request.max_positions)
        free = self._limits.kv_budget_bytes - self.reserved_bytes
        if needed > free:
            raise OverloadedError(
                f"a session of {request.max_positions} positions needs {needed:,} bytes of KV on {len(kv_layers)} "
                f"layers: {free:,} of {self._limits.kv_budget_bytes:,} are free"
            )
        session = Session(
            request.session, owner, request.route, request.max_positions, needed, request.idle_s, now, self.join_gauge,
            layout, layout.barriers(kv_layers),
        )  # fmt: skip
        self._sessions[session.id] = session
        self.reserved_bytes += needed
        return session

    def owned(self, session_id: int, owner: int) -> Session:
        """The session, if `owner` opened it; UnknownSessionError else."""
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise UnknownSessionError(f"session {session_id} is not open here")
        return session

    def close(self, session: Session) -> None:
        """Forget a session and give its reservation back. Its caches go with the last batch that uses them."""
        if not session.is_closed:
            session.is_closed = True
            session.joins.clear()
            session.seeds.clear()
            session.scratch.clear()
            del self._sessions[session.id]
            self.reserved_bytes -= session.kv_bytes

    def expired(self, now: float) -> list[Session]:
        """Sessions that nothing used for longer than their `idle_s`."""
        return [s for s in self if now - s.last_used_s > s.idle_s and not s.is_computing and not s.queued]
