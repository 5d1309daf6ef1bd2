"""The reference transport: the sans-IO core of the `websockets` library in an asyncio protocol of our own.

The library does the RFC (handshake, fragments, pings, close codes, sizes); this module moves bytes between it and a
socket in callbacks, one read and one write a message, and reads and writes frames that are whole messages itself
(`whole_frames`). No compression is ever offered or accepted. Sockets are those of `aiofastnet` where that can be
imported, which write at once, else the event loop's.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, Protocol, Side, State
from websockets.uri import parse_uri

from ..errors import AeonflowError, LinkClosedError, OversizeError, RemoteProtocolError
from ..frames import Buffer
from .base import HIGH_WATER_BYTES, Receiver, SocketWire, Wire, cut_reason, end_stream
from .dial import Target, connection_failure, http_refusal
from .gate import Admitted, set_no_delay
from .whole_frames import WholeWriter, frame_bytes, read_whole

_sockets: Any = importlib.import_module("aiofastnet") if importlib.util.find_spec("aiofastnet") else None
_END_OF_HEADERS = b"\r\n\r\n"


class WebSocketWire(SocketWire, asyncio.Protocol):
    """A connection whose handshake is done, on either side.

    `events`: what the core has read behind the handshake, of which it was given `num_bytes`. Nothing is read or
    delivered before `start`.
    """

    name = "websockets"

    def __init__(
        self, core: Protocol, transport: asyncio.Transport, peer_url: str, events: Iterable[Event], num_bytes: int,
        max_message_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(peer_url)
        self._core = core
        self._transport = transport
        self._early = list(events)
        self._is_server = core.side is Side.SERVER  # then what comes is masked, and what goes is not
        self._max_message_bytes = max_message_bytes
        self._write_whole = WholeWriter(is_masked=not self._is_server).write
        self._partial_bytes = num_bytes  # given to the core beyond the frames it has made of them
        self._note_frames(self._early)
        transport.pause_reading()
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def send(self, message: Buffer) -> None:
        if self._is_closing or self._core.state is not State.OPEN or self._transport.is_closing():
            return
        self._transport.write(self._write_whole(message))

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
        receiver = self._receiver
        is_between = not self._partial_bytes and self._fragments is None
        if is_between and receiver is not None and self._core.state is State.OPEN:
            message = read_whole(data, self._max_message_bytes, is_masked=self._is_server)
            if message is not None:
                receiver.on_data(message)
                if self.is_congested:
                    receiver.on_congested()
                return
        self._partial_bytes += len(data)
        self._core.receive_data(data)
        events = self._core.events_received()
        self._note_frames(events)
        if receiver is None:
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

    def _note_frames(self, events: Iterable[Event]) -> None:
        """Frames that the core has made of the bytes it was given; 0 left means that it stands between two frames.

        A length that was written longer than it need be makes the rest too large, for good: then the core reads all.
        """
        for event in events:
            if isinstance(event, Frame):
                self._partial_bytes -= frame_bytes(len(event.data), is_masked=self._is_server)

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
        self._core = core
        self._target = target
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        set_no_delay(transport)
        request = self._core.connect()
        request.headers.update(self._target.headers)
        self._core.send_request(request)
        self._transport.write(b"".join(self._core.data_to_send()))

    def data_received(self, data: bytes) -> None:
        if not self.done.done():
            self._received += data
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
            wire = WebSocketWire(
                self._core,
                self._transport,
                url,
                events[1:],
                _bytes_behind(self._received),
                self._target.max_message_bytes,
            )
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
            transport, handshake = await _connect(lambda: _Handshake(core, target), target)
            wire = await handshake.done
            return wire
    except TimeoutError:
        raise LinkClosedError(f"{target.url}: no answer to the handshake within {target.timeout_s} s") from None
    except OSError as error:
        raise connection_failure(target.url, error) from None
    finally:
        if wire is None and transport is not None:
            transport.abort()


def _connect(factory: Callable[[], _Handshake], target: Target) -> Awaitable[tuple[asyncio.Transport, _Handshake]]:
    loop = asyncio.get_running_loop()
    create = loop.create_connection if _sockets is None else partial(_sockets.create_connection, loop)
    return create(factory, target.host, target.port, ssl=target.ssl)


async def listen(factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any) -> asyncio.Server:
    """Like `create_server` of the event loop."""
    loop = asyncio.get_running_loop()
    create = loop.create_server if _sockets is None else partial(_sockets.create_server, loop)
    server: asyncio.Server = await create(factory, host, port, **options)
    return server


def _bytes_behind(raw: bytes) -> int:
    """Of what was read first, the bytes that follow the HTTP head."""
    return len(raw) - raw.index(_END_OF_HEADERS) - len(_END_OF_HEADERS)


def upgrade(admitted: Admitted) -> Wire | None:
    """Finish the handshake of a connection that passed the gate; None when it asked for no proper upgrade."""
    core, transport = admitted.core, admitted.transport
    response = core.accept(admitted.request)
    core.send_response(response)
    transport.write(b"".join(core.data_to_send()))
    if response.status_code != 101:
        transport.close()
        return None
    wire = WebSocketWire(
        core, transport, admitted.peer_url, core.events_received(), _bytes_behind(admitted.raw),
        admitted.max_message_bytes,
    )  # fmt: skip
    transport.set_protocol(wire)
    return wire
