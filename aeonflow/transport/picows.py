"""The fast transport: `picows`, the same protocol in Cython, on the sockets of `aiofastnet`.

It hands out WebSocket frames, not messages, from a buffer that dies with the callback: payloads are copied once here,
fragments are collected here, and the size of a whole message is bounded here. Where this module cannot be imported,
`choice` takes websockets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import aiofastnet
import picows
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # the class itself: we make the sockets, not picows
from picows.url import parse_url

from ..errors import AeonflowError, LinkClosedError, OversizeError, RemoteProtocolError
from ..frames import Buffer
from .base import HIGH_WATER_BYTES, Receiver, SocketWire, Wire, cut_reason
from .dial import Target, connection_failure, http_refusal
from .gate import Admitted

# picows logs every connection and every fault of a peer; links report both as errors and counters.
_logger = logging.getLogger("aeonflow.picows")
_logger.setLevel(logging.CRITICAL)

_BINARY = picows.WSMsgType.BINARY
_CONTINUATION = picows.WSMsgType.CONTINUATION
_TEXT = picows.WSMsgType.TEXT
_CLOSE = picows.WSMsgType.CLOSE
_PING = picows.WSMsgType.PING

_READ_BUFFER_BYTES = 64 * 1024  # grows by doubling when a message is larger


class PicowsWire(SocketWire, picows.WSListener):
    """A connection on either side. Frames that come before `start` are kept."""

    name = "picows"

    def __init__(self, peer_url: str, max_message_bytes: int) -> None:
        super().__init__(peer_url)
        self._max_message_bytes = max_message_bytes
        self._early: list[bytes | bytearray] = []
        self._settling: asyncio.Task[None] | None = None
        self._ws: picows.WSTransport
        self.is_connected = False

    def send(self, message: Buffer) -> None:
        if not self._is_closing:
            self._ws.send(_BINARY, message)

    def close(self, code: int, reason: str) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._ws.send_close(picows.WSCloseCode(code), cut_reason(reason).encode())
            self._expect_end()

    # What picows calls.

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._ws = transport
        self._transport = transport.underlying_transport
        self.is_connected = True
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._transport.pause_reading()

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        kind = frame.msg_type
        if transport.is_close_frame_sent:
            # Closing, by us or by picows, which goes on to hand out frames after a peer's fault: none counts any more.
            if kind == _CLOSE:
                transport.disconnect()
        elif frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._fault(RemoteProtocolError(f"{self.peer_url}: reserved bits of a WebSocket frame are set"), 1002)
        elif kind == _BINARY and frame.fin and self._fragments is None:
            if self._receiver is not None:
                self._receiver.on_data(frame.get_payload_as_bytes())
            else:
                self._early.append(frame.get_payload_as_bytes())
        elif kind in (_BINARY, _CONTINUATION):
            self._collect(kind == _BINARY, frame)
        elif kind == _TEXT:
            self._fault(RemoteProtocolError("text message: only binary messages are allowed"), 1003)
        elif kind == _CLOSE:
            self._on_close_frame(transport, frame)
        elif kind == _PING:
            self._pong(transport, frame)

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        error = self._lost_error
        if error is None and not self._is_closing:
            error = self._why_lost(transport)
            if transport.is_client_side:
                self._settling = self._loop.create_task(_settle(transport))
        self._ended(error)

    def _deliver_early(self, receiver: Receiver) -> None:
        early, self._early = self._early, []
        for message in early:
            receiver.on_data(message)

    def _deliver(self, message: bytes | bytearray) -> None:
        if self._receiver is None:
            self._early.append(message)
        else:
            self._receiver.on_data(message)

    def _collect(self, is_first: bool, frame: picows.WSFrame) -> None:
        """One fragment of a message; the order of fragments and the size of the whole are checked."""
        if is_first != (self._fragments is None):
            expected = "a continuation" if is_first else "a first"
            self._fault(RemoteProtocolError(f"{self.peer_url}: fragment out of order, expected {expected} frame"), 1002)
            return
        fragments = bytearray() if self._fragments is None else self._fragments
        size = len(fragments) + frame.payload_size
        if size > self._max_message_bytes:
            limit = self._max_message_bytes
            self._fault(OversizeError(f"{self.peer_url}: message of {size:,} bytes, allowed are {limit:,}"), 1009)
            return
        fragments += frame.get_payload_as_memoryview()
        self._fragments = None if frame.fin else fragments
        if frame.fin:
            self._deliver(fragments)

    def _pong(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        transport.send_pong(frame.get_payload_as_bytes())
        if self.is_congested and self._receiver is not None:
            self._receiver.on_congested()

    def _on_close_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        self._is_closing = True
        payload = frame.get_payload_as_bytes()
        code = int.from_bytes(payload[:2], "big") if payload else 1005
        reason = payload[2:].decode(errors="replace")
        self._lost_error = LinkClosedError(f"{self.peer_url} closed the connection: {code} {reason}".rstrip())
        transport.send_close(picows.WSCloseCode.OK)
        transport.disconnect()

    def _fault(self, error: AeonflowError, close_code: int) -> None:
        if self._receiver is None:
            self._lost_error = error
            self.close(close_code, str(error))
        else:
            self._receiver.on_fault(error, close_code)

    def _why_lost(self, transport: picows.WSTransport) -> AeonflowError:
        """A close frame that we did not ask for was sent by picows, because the peer broke a rule that it checks."""
        handshake = transport.close_handshake
        sent = handshake.sent if handshake is not None else None
        if sent is None:
            return LinkClosedError(f"{self.peer_url}: the connection broke")
        kind = OversizeError if sent.code == picows.WSCloseCode.MESSAGE_TOO_BIG else RemoteProtocolError
        return kind(f"{self.peer_url}: {sent.reason or f'close code {sent.code.value}'}")


async def _settle(transport: picows.WSTransport) -> None:
    """Retrieve the error that picows keeps for clients; it is known already, and would be logged unretrieved."""
    try:
        await transport.wait_disconnected()
    except picows.WSError:
        pass


async def dial(target: Target) -> Wire:
    """Connect without proxy or redirects. AuthenticationError for 401 and 403, LinkClosedError for all else."""
    wire = PicowsWire(target.url, target.max_message_bytes)
    transport: asyncio.Transport | None = None
    is_answered = False
    try:
        async with asyncio.timeout(target.timeout_s):
            transport, protocol = await aiofastnet.create_connection(
                asyncio.get_running_loop(), lambda: _client(target, wire), target.host, target.port, ssl=target.ssl
            )
            await protocol.wait_until_handshake_complete()
            is_answered = True
    except TimeoutError:
        raise LinkClosedError(f"{target.url}: no answer to the handshake within {target.timeout_s} s") from None
    except OSError as error:
        raise connection_failure(target.url, error) from None
    except picows.WSHandshakeError as error:
        if error.response is not None and error.response.status != 101:
            body = (error.raw_body or b"").decode(errors="replace")
            raise http_refusal(target.url, int(error.response.status), body) from None
        raise LinkClosedError(f"{target.url}: no WebSocket answers: {error}") from None
    finally:
        if not is_answered and transport is not None:
            transport.abort()
    if not wire.is_connected:
        raise LinkClosedError(f"{target.url}: closed during the handshake")
    return wire


def upgrade(admitted: Admitted) -> Wire | None:
    """Hand a connection that passed the gate to picows, which reads its request again and answers it."""
    wire = PicowsWire(admitted.peer_url, admitted.max_message_bytes)
    protocol = _protocol(wire, admitted.max_message_bytes)
    admitted.transport.set_protocol(protocol)
    protocol.connection_made(admitted.transport)
    rest = memoryview(admitted.raw)
    while len(rest):
        room = protocol.get_buffer(len(rest))
        size = min(len(room), len(rest))
        room[:size] = rest[:size]
        protocol.buffer_updated(size)
        rest = rest[size:]
    return wire if wire.is_connected else None


def _client(target: Target, wire: PicowsWire) -> WSProtocol:
    """The dialling side, whose `connection_made` sends the request."""
    url = parse_url(target.url)
    return _protocol(wire, target.max_message_bytes, (url.netloc, url.resource_name), target.headers)


def _protocol(
    wire: PicowsWire,
    max_message_bytes: int,
    address: tuple[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> WSProtocol:
    """picows on one connection: a client with an `address` (host and port, path) to ask for, else a server."""
    return WSProtocol(
        address[0] if address is not None else None,
        address[1] if address is not None else None,
        address is not None,
        lambda *_: wire,
        _logger,
        True,  # disconnect_on_exception
        None,  # handshake timeout: `dial` and the gate have their own
        False,  # enable_auto_ping: links have a heartbeat of their own
        1.0,
        1.0,
        picows.WSAutoPingStrategy.PING_WHEN_IDLE,
        False,  # enable_auto_pong: pongs are counted among what waits
        max_message_bytes,
        headers,
        _READ_BUFFER_BYTES,
    )


async def listen(factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any) -> asyncio.Server:
    """Like `create_server` of the event loop, with the sockets that picows is fastest on."""
    server: asyncio.Server = await aiofastnet.create_server(asyncio.get_running_loop(), factory, host, port, **options)
    return server
