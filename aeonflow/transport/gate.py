"""The server's side of the upgrade, the same for every transport: who may come in, before any frame.

Each accepted socket is a `Gate` first. It reads one HTTP request (bounded in bytes and time), asks the gatekeeper, and
answers 401 or 403 itself; an admitted connection is handed to the transport. The number of sockets still at the gate is
capped, so that strangers cannot use up the process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from websockets.http11 import Request
from websockets.server import ServerProtocol

from ..auth import Gatekeeper, Permission, Refusal
from .base import CLOSE_TIMEOUT_S, end_stream

MAX_REQUEST_BYTES = 16 * 1024  # of the HTTP request; ours has about 300


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """TCP_NODELAY: a small message must not wait for the acknowledgement of the one before."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Admitted:
    """A connection that passed the gate: what a transport needs to make a wire of it."""

    __slots__ = ("core", "max_message_bytes", "peer_url", "permission", "raw", "request", "transport")

    def __init__(
        self,
        core: ServerProtocol,
        request: Request,
        raw: bytes,
        transport: asyncio.Transport,
        permission: Permission,
        peer_url: str,
        max_message_bytes: int,
    ) -> None:
        self.core = core  # has read `request`, has answered nothing
        self.request = request
        self.raw = raw  # the bytes read so far, from the first on
        self.transport = transport
        self.permission = permission
        self.peer_url = peer_url
        self.max_message_bytes = max_message_bytes  # of one WebSocket message


class GateRules:
    """What all gates of a server share: rules, bounds, and who is waiting."""

    def __init__(
        self,
        gatekeeper: Gatekeeper,
        admit: Callable[[Admitted], None],
        is_full: Callable[[], bool],
        *,
        max_message_bytes: int,
        handshake_s: float,
        max_unauthenticated: int,
    ) -> None:
        self.gatekeeper = gatekeeper
        self.admit = admit
        self.is_full = is_full
        self.max_message_bytes = max_message_bytes
        self.handshake_s = handshake_s
        self.max_unauthenticated = max_unauthenticated
        self.waiting: set[Gate] = set()

    def close(self) -> None:
        for gate in tuple(self.waiting):
            gate.abort()


class Gate(asyncio.Protocol):
    """One socket before its upgrade."""

    def __init__(self, rules: GateRules) -> None:
        self._rules = rules
        self._core = ServerProtocol(max_size=rules.max_message_bytes)
        self._raw = bytearray()
        self._is_decided = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._rules.handshake_s, self.abort)
        set_no_delay(transport)
        num_waiting = len(self._rules.waiting)
        self._rules.waiting.add(self)
        if num_waiting >= self._rules.max_unauthenticated:
            self._refuse(Refusal(503, f"{num_waiting} connections wait for their handshake, the most allowed"))
            self._transport.close()  # at once: there is no room to see it off
        elif self._rules.is_full():
            self._refuse(Refusal(503, "no more connections are taken"))

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_decided:
            return
        self._raw += data
        self._core.receive_data(data)
        events = self._core.events_received()
        if events:
            request = events[0]
            assert isinstance(request, Request)
            self._decide(request)
        elif self._core.handshake_exc is not None:
            self._answer()
        elif len(self._raw) > MAX_REQUEST_BYTES:
            self._refuse(Refusal(431, f"request of more than {MAX_REQUEST_BYTES:,} bytes"))

    def eof_received(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def _decide(self, request: Request) -> None:
        headers = request.headers
        decision = self._rules.gatekeeper.admit(headers.get_all("Authorization"), headers.get_all("Origin"))
        if isinstance(decision, Refusal):
            self._refuse(decision)
            return
        self._is_decided = True
        self._leave()
        self._rules.admit(
            Admitted(
                self._core,
                request,
                bytes(self._raw),
                self._transport,
                decision,
                _peer_url(self._transport),
                self._rules.max_message_bytes,
            )
        )

    def _refuse(self, refusal: Refusal) -> None:
        response = self._core.reject(refusal.status, f"{refusal.reason}\n")
        if refusal.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        self._core.send_response(response)
        self._answer()

    def _answer(self) -> None:
        """Send the refusal that the core holds; soon after, the connection ends even if the other side stays."""
        self._is_decided = True
        self._transport.write(b"".join(self._core.data_to_send()))
        end_stream(self._transport)
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def _leave(self) -> None:
        self._timer.cancel()
        self._rules.waiting.discard(self)


def _peer_url(transport: asyncio.BaseTransport) -> str:
    scheme = "wss" if transport.get_extra_info("ssl_object") is not None else "ws"
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple) or len(peer) < 2:
        return f"{scheme}://unknown"
    host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
    return f"{scheme}://{host}:{peer[1]}"
