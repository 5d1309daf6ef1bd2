"""The reference transport: the sans-IO core of the `websockets` library in an asyncio protocol of our own.

The library does the RFC (handshake, masking, fragments, pings, close codes, sizes); this module moves bytes between it
and a socket in callbacks, one read and one write a message. No compression is ever offered or accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, Protocol, State
from websockets.uri import parse_uri

from ..errors import AeonflowError, LinkClosedError, OversizeError, RemoteProtocolError
from ..frames import Buffer
from .base import HIGH_WATER_BYTES, Receiver, SocketWire, Wire, cut_reason, end_stream
from .dial import Target, connection_failure, http_refusal
from .gate import Admitted, set_no_delay


class WebSocketWire(SocketWire, asyncio.Protocol):
    """A connection whose handshake is done, on either side.

    `events`: what the core has read behind the handshake. Nothing is read or delivered before `start`.
    """

    name = "websockets"

    def __init__(self, core: Protocol, transport: asyncio.Transport, peer_url: str, events: Iterable[Event]) -> None:
        super().__init__(peer_url)
        self._core = core
        self._transport = transport
        self._early = list(events)
        transport.pause_reading()
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def send(self, message: Buffer) -> None:
        if self._is_closing or self._core.state is not State.OPEN:
            return
        self._core.send_binary(message)
        self._flush()

    def close(self, code: int, reason: str) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._core.state is State.OPEN:
            self._core.send_close(code, cut_reason(reason))
            self._flush()
        self._expect_end()

    # What asyncio calls.

    def data_received(self, data: bytes) -> None:
        self._core.receive_data(data)
        events = self._core.events_received()
        if self._receiver is None:
            self._early += events
        else:
            self._handle(events)

    def eof_received(self) -> None:
        self._core.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._core.receive_eof()  # idempotent; it settles how the connection ended
        self._ended(self._why_lost(exc))

    def _deliver_early(self, receiver: Receiver) -> None:
        early, self._early = self._early, []
        self._handle(early)

    def _handle(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Frame):
                self._receive(event)
        self._flush()  # pongs and close frames that the core answers with
        if self.is_congested and self._receiver is not None:
            self._receiver.on_congested()
        if self._core.close_expected():
            self._expect_end()

    def _receive(self, frame: Frame) -> None:
        receiver, opcode = self._receiver, frame.opcode
        if receiver is None:
            return
        if opcode is Opcode.BINARY and frame.fin:
            receiver.on_data(frame.data)
        elif opcode is Opcode.BINARY:
            self._fragments = bytearray(frame.data)
        elif opcode is Opcode.CONT and self._fragments is not None:
            self._fragments += frame.data
            if frame.fin:
                message, self._fragments = self._fragments, None
                receiver.on_data(message)
        elif opcode is Opcode.TEXT:
            receiver.on_fault(RemoteProtocolError("text message: only binary messages are allowed"), 1003)

    def _flush(self) -> None:
        writes = self._core.data_to_send()
        if not writes or self._transport.is_closing():
            return
        data = writes[0] if len(writes) == 1 else b"".join(writes)
        if data:
            self._transport.write(data)
        if not writes[-1]:  # the core's sign that the stream ends here
            end_stream(self._transport)

    def _why_lost(self, exc: Exception | None) -> AeonflowError | None:
        broken = self._core.parser_exc
        if isinstance(broken, PayloadTooBig):
            return OversizeError(f"{self.peer_url}: {broken}")
        if broken is not None and not isinstance(broken, EOFError):
            return RemoteProtocolError(f"{self.peer_url}: {broken}")
        received = self._core.close_rcvd
        if received is not None and self._core.close_rcvd_then_sent:
            return LinkClosedError(f"{self.peer_url} closed the connection: {received.code} {received.reason}".rstrip())
        if self._is_closing:
            return None
        return LinkClosedError(f"{self.peer_url}: the connection broke{f': {exc}' if exc else ''}")


class _Handshake(asyncio.Protocol):
    """The client's side of the upgrade; its wire takes the transport over afterwards."""

    def __init__(self, core: ClientProtocol, target: Target) -> None:
        self.done: asyncio.Future[WebSocketWire] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may await it
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may await it
        self._core = core
        self._target = target
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        set_no_delay(transport)
        request = self._core.connect()
        request.headers.update(self._target.headers)
        self._core.send_request(request)
        self._transport.write(b"".join(self._core.data_to_send()))

    def data_received(self, data: bytes) -> None:
        self._core.receive_data(data)
        self._progress()

    def eof_received(self) -> None:
        self._core.receive_eof()
        self._progress()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(LinkClosedError(f"{self._target.url}: closed during the handshake"))

    def _progress(self) -> None:
        events = self._core.events_received()
        error = self._core.handshake_exc
        if self.done.done() or self._transport is None or not (events or error):
            return
        url = self._target.url
        if error is None:
            wire = WebSocketWire(self._core, self._transport, url, events[1:])
            self._transport.set_protocol(wire)
            self.done.set_result(wire)
            return
        self._transport.abort()
        if isinstance(error, InvalidStatus):
            body = bytes(error.response.body).decode(errors="replace")
            self.done.set_exception(http_refusal(url, error.response.status_code, body))
        else:
            self.done.set_exception(LinkClosedError(f"{url}: no WebSocket answers: {error}"))


async def dial(target: Target) -> Wire:
    """Connect without proxy or redirects. AuthenticationError for 401 and 403, LinkClosedError for all else."""
    core = ClientProtocol(parse_uri(target.url), max_size=target.max_message_bytes)
    transport: asyncio.Transport | None = None
    wire: WebSocketWire | None = None
    try:
        async with asyncio.timeout(target.timeout_s):
            transport, handshake = await asyncio.get_running_loop().create_connection(
                lambda: _Handshake(core, target), target.host, target.port, ssl=target.ssl
            )
            wire = await handshake.done
            return wire
    except TimeoutError:
        raise LinkClosedError(f"{target.url}: no answer to the handshake within {target.timeout_s} s") from None
    except OSError as error:
        raise connection_failure(target.url, error) from None
    finally:
        if wire is None and transport is not None:
            transport.abort()


async def listen(factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any) -> asyncio.Server:
    """`create_server` of the running event loop."""
    return await asyncio.get_running_loop().create_server(factory, host, port, **options)


def upgrade(admitted: Admitted) -> Wire | None:
    """Finish the handshake of a connection that passed the gate; None when it asked for no proper upgrade."""
    core, transport = admitted.core, admitted.transport
    response = core.accept(admitted.request)
    core.send_response(response)
    transport.write(b"".join(core.data_to_send()))
    if response.status_code != 101:
        transport.close()
        return None
    wire = WebSocketWire(core, transport, admitted.peer_url, core.events_received())
    transport.set_protocol(wire)
    return wire
