"""One connection after its hello: the same object on both sides and on every transport (`docs/design.md`, *Link*).

A link frames and batches what is sent, assembles what arrives, matches replies to calls, keeps the heartbeat, and
closes on silence, on broken rules and on queues that overflow. It handles stream `0000` itself and vents streams that
nobody here takes. Everything runs in the event loop's callbacks: no task a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from . import bands
from .assembly import MAX_PARTIAL_MESSAGES, Assembler, Message, cut_message, packed_frames
from .auth import Permission
from .batcher import FlowSendBatcher
from .calls import FIRST_CALL_ID, CallTable
from .drain import DrainWaiters
from .errors import (
    AeonflowError,
    CancelledCallError,
    DeadlineError,
    LinkClosedError,
    NotForYouError,
    OverloadedError,
    ProtocolError,
    RemoteProtocolError,
    UnknownStreamError,
    from_code,
)
from .frames import IS_VENT, SEQUENCE, SEQUENCE_AT, Buffer, Flags
from .handshake import MAX_CONNECTION_MESSAGE_BYTES, MAX_PARTIAL_BEFORE_HELLO, read_connection_message
from .heartbeat import Heart
from .link_options import CLOSE_CODES, ORDERLY_CODES, LinkOptions, LinkStats
from .messages import Goodbye, Heartbeat, Hello, Limits, Vent, encode
from .opening import Opening
from .transport.base import Wire
from .turn import turn_of
from .vents import closed_error, error_to_tell, read_vent

logger = logging.getLogger("aeonflow.link")

Pieces = Buffer | Sequence[Buffer]


class Link:
    """See the module. Made by `connect`, `serve` and `memory_pair`; all methods belong to the event loop's thread.

    `local`, `remote`: both hellos. `limits`: the smaller of both. `permission`: "full", or "forward" for a peer that
    came with the station key. `on_message` is called in the reader for every message but those of stream 0000 and
    replies to calls; an error it raises is vented to the sender, a ProtocolError closes the link. `on_close` is called
    exactly once: with None after an orderly close from either side, else with the error. `accepted_streams`: when set,
    messages on any other stream are vented here. `first_taker` is shown every WebSocket message before anything is made
    of it, and each frame of one that holds several, with the time; True: it was one whole message, and is done with.
    `goodbye`: the peer's last words, once they came.
    """

    def __init__(
        self,
        wire: Wire,
        hello: Hello,
        options: LinkOptions,
        *,
        is_dialer: bool,
        coalesce: bool = True,
        permission: Permission = "full",
        on_open: Callable[[Link], None] | None = None,
    ) -> None:
        self.local = hello
        self.limits: Limits = hello.limits
        self.permission: Permission = permission
        self.transport = wire.name
        self.peer_url = wire.peer_url
        self.accepted_streams: Collection[int] | None = None
        self.on_message: Callable[[Message], None] = self._nobody_listens
        self.first_taker: Callable[[Buffer, float], bool] | None = None
        self.on_close: Callable[[AeonflowError | None], None] | None = None
        self.on_ended: Callable[[Link], None] | None = None  # for the server that keeps the link
        self.goodbye: Goodbye | None = None
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._turn = turn_of(self._loop)
        self._wire = wire
        self._options = options
        self._on_open = on_open
        self._stats = LinkStats()
        self._is_closed = False
        self._error: AeonflowError | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._opening = Opening(self._loop, hello, wire.peer_url, options, self._fail)
        self._calls = CallTable(self._loop, is_dialer=is_dialer)
        self._drain = DrainWaiters(wire.peer_url, lambda: wire.waiting_bytes, options.high_water_bytes)
        self.on_writable = self._drain.wake
        self._assembler = Assembler(MAX_CONNECTION_MESSAGE_BYTES, MAX_PARTIAL_BEFORE_HELLO)  # until hello has come
        self._batcher = FlowSendBatcher(self._write, coalesce=coalesce, schedule=self._turn.schedule)
        self._heart = Heart(self._loop, options, self._send_connection_message, self._silent)
        wire.set_high_water(min(options.high_water_bytes, options.max_outbound_bytes))
        self._send_connection_message(hello)
        self._batcher.flush()
        wire.start(self)

    @property
    def remote(self) -> Hello:
        """The peer's hello. LinkClosedError before it came."""
        remote = self._opening.remote
        if remote is None:
            raise LinkClosedError(f"{self.peer_url}: no hello has come")
        return remote

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_suspected(self) -> bool:
        """Nothing has arrived for longer than the suspicion time."""
        return self._heart.silence_s > self._options.suspected_s

    @property
    def silence_s(self) -> float:
        """Seconds since the peer was last heard, while this side was awake to hear it."""
        return self._heart.silence_s

    @property
    def remote_heartbeat(self) -> Heartbeat:
        """The peer's last heartbeat: its queue length and the age of the batch it computes."""
        return self._heart.remote

    @property
    def waiting_bytes(self) -> int:
        """Bytes sent that have not left the process."""
        return self._batcher.waiting_bytes + self._wire.waiting_bytes

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    @property
    def stats(self) -> LinkStats:
        """The counters as they are now; the same object each time."""
        batcher, delays = self._batcher, self._wire.delays()
        return self._stats.brought_up_to_date(batcher, self._assembler.frames, self._calls.late_replies, *delays)

    def set_heartbeat(self, source: Callable[[], Heartbeat]) -> None:
        """`source` is asked every beat for the queue length and the age of the running batch."""
        self._heart.source = source

    def next_sequence(self) -> int:
        """A sequence for a one-way message, or a call whose replies `on_message` takes; never one the peer uses."""
        return self._calls.next_one_way()

    def send(self, stream: int, sequence: int, pieces: Pieces, flags: Flags = Flags.FIN, *, now: bool = False) -> None:
        """Queue a message; copies `pieces` once and never blocks. `now`: written at once, with what waits before it.

        LinkClosedError on a closed link, FrameTooLargeError (nothing was sent) beyond the negotiated limit.
        """
        if self._is_closed:
            raise self._closed()
        put = self._batcher.write_frame if now else self._batcher.send_frame
        for packed in cut_message(stream, sequence, pieces, flags, self.limits.max_message_bytes):
            put(packed)

    def send_packed(self, frame: memoryview) -> None:
        """Write a packed frame, a whole message, at once. Its sequence is filled in, the next of one-way messages;
        its memory is the caller's again afterwards. LinkClosedError on a closed link."""
        if self._is_closed:
            raise self._closed()
        SEQUENCE.pack_into(frame, SEQUENCE_AT, self._calls.next_one_way())
        batcher, wire = self._batcher, self._wire
        if batcher.waiting_bytes:
            batcher.flush()
        batcher.frames += 1
        batcher.messages += 1
        batcher.bytes += len(frame)
        wire.send(bytes(frame) if wire.keeps_messages else frame)
        if wire.is_congested:
            self.on_congested()

    def flush(self) -> None:
        """Send what waits in the batcher now, not at the end of this turn."""
        self._batcher.flush()

    def vent(self, message: Message, error: AeonflowError, **where: int) -> None:
        """Answer `message` with `error`; `where` fills session, epoch, kind, first, layer of the Vent."""
        self.send_vent(message.stream, message.sequence, Vent(error.code, str(error), self.local.name, **where))

    def send_vent(self, stream: int, sequence: int, vent: Vent) -> None:
        """Send a typed error on any stream; does nothing on a closed link."""
        if not self._is_closed:
            self.send(stream, sequence, encode(vent), Flags.VENT | Flags.FIN)

    async def call(self, stream: int, pieces: Pieces, *, timeout_s: float) -> Message:
        """Send under a call id of its own and wait for the reply of the same id.

        A VENT raises the error it names. DeadlineError after `timeout_s`; then, and when the caller is cancelled, the
        peer is told to stop. OverloadedError at the negotiated number of calls in flight.
        """
        if self._is_closed:
            raise self._closed()
        sequence, reply = self._calls.open(stream, self.limits.max_calls)
        timer = self._loop.call_later(timeout_s, self._call_late, stream, sequence, timeout_s)
        try:
            self.send(stream, sequence, pieces)
            self._stats.calls += 1
            message = await reply
        except asyncio.CancelledError:
            self._give_up(stream, sequence, CancelledCallError("the caller was cancelled"))
            raise
        finally:
            timer.cancel()
            self._calls.end(stream, sequence)
        if IS_VENT[message.flags]:
            raise read_vent(message)
        return message

    async def drain(self, timeout_s: float) -> None:
        """Wait until the bytes waiting are below the high-water mark. DeadlineError, LinkClosedError."""
        self._batcher.flush()
        await self._drain.wait(timeout_s, lambda: self._is_closed)
        if self._is_closed:
            raise self._closed()

    async def close(self, code: str = "done", reason: str = "") -> None:
        """Say goodbye, send what waits, close; returns when the connection is gone. May be called again."""
        self._shut(None if code in ORDERLY_CODES else from_code(code, reason), code, reason)
        await asyncio.shield(self._lost)

    async def opened(self) -> None:
        """Wait for the peer's hello; raises why there was none."""
        await self._opening.wait()

    def on_data(self, message: Buffer) -> None:
        """One WebSocket message: every frame is checked and assembled before anything is delivered."""
        if self._is_closed:
            return
        now = self._heart.heard_at = self._time()
        stats, taker = self._stats, self.first_taker
        stats.messages_received += 1
        stats.bytes_received += len(message)
        if taker is not None and taker(message, now):
            self._assembler.frames += 1
            return
        self._turn.begin()
        try:
            wholes = self._assembler.read(message)
            frames = packed_frames(message, wholes) if taker is not None and len(wholes) > 1 else ()
            for index, whole in enumerate(wholes):
                if not frames or taker is None or not taker(frames[index], now):
                    self._deliver(whole)
        except AeonflowError as error:
            self._fail(error)
        finally:
            self._turn.end()

    def on_fault(self, error: AeonflowError, close_code: int) -> None:
        self._fail(error, close_code)

    def on_congested(self) -> None:
        waiting_bytes = self._wire.waiting_bytes
        if waiting_bytes > self._options.max_outbound_bytes and not self._is_closed:
            limit = self._options.max_outbound_bytes
            self._fail(
                OverloadedError(f"{self.peer_url} does not read: {waiting_bytes:,} bytes waiting, at most {limit:,}")
            )

    def on_lost(self, error: AeonflowError | None) -> None:
        if not self._is_closed:
            self._finish(error or LinkClosedError(f"{self.peer_url}: the connection ended"))
        if not self._lost.done():
            self._lost.set_result(None)

    def _deliver(self, message: Message) -> None:
        if self._is_closed:
            return
        stream = message.stream
        if stream == bands.CONNECTION:
            self._on_connection_message(message)
            return
        if self._opening.remote is None:
            raise RemoteProtocolError(f"stream {stream:04x} before hello: the first frame must be a hello")
        if message.sequence >= FIRST_CALL_ID and self._calls.take(message):
            return
        try:
            if self.permission == "forward" and stream not in bands.FORWARD_STREAMS:
                raise NotForYouError(f"stream {stream:04x}: the station key permits forwarding only")
            if self.accepted_streams is not None and stream not in self.accepted_streams:
                raise UnknownStreamError(f"stream {stream:04x} is not one that {self.local.name!r} takes")
            self.on_message(message)
        except ProtocolError:
            raise
        except Exception as error:
            self._vent_for(message, error)

    def _vent_for(self, message: Message, error: Exception) -> None:
        """Turn what a handler raised into a VENT. A VENT is never answered with one, nor is a seed."""
        told = error_to_tell(error, message)
        if IS_VENT[message.flags] or bands.is_seed(message.stream):
            self._stats.dropped += 1
            return
        self._stats.vented += 1
        self.vent(message, told)

    def _nobody_listens(self, message: Message) -> None:
        raise UnknownStreamError(f"stream {message.stream:04x}: {self.local.name!r} takes no messages")

    def _on_connection_message(self, message: Message) -> None:
        content = read_connection_message(message.payload)
        if isinstance(content, Hello):
            self._on_hello(content)
        elif isinstance(content, Goodbye):
            self.goodbye = content
            error: AeonflowError | None = None
            if content.code not in ORDERLY_CODES:
                error = from_code(content.code, content.reason)
            elif self._opening.remote is None:
                error = LinkClosedError(f"{self.peer_url}: goodbye before hello: {content.reason or content.code}")
            self._shut(error, "done", "")
        elif self._opening.remote is None:
            raise RemoteProtocolError("heartbeat before hello: the first frame must be a hello")
        else:
            self._heart.remote = content

    def _on_hello(self, remote: Hello) -> None:
        self.limits = self._opening.take(remote)
        self._assembler.set_limits(self.limits.max_message_bytes, MAX_PARTIAL_MESSAGES)
        self._heart.start()
        if self._on_open is not None:
            try:
                self._on_open(self)
            except Exception as error:
                logger.error("opening a link to %s failed", self.peer_url, exc_info=error)
                raise AeonflowError(f"internal error while opening the link: {type(error).__name__}") from error
        self._opening.done()

    def _write(self, message: Buffer) -> None:
        self._wire.send(message)
        if self._wire.is_congested:
            self.on_congested()

    def _send_connection_message(self, content: Hello | Heartbeat | Goodbye) -> None:
        for packed in cut_message(bands.CONNECTION, 0, encode(content)):
            self._batcher.send_frame(packed)

    def _call_late(self, stream: int, sequence: int, timeout_s: float) -> None:
        error = DeadlineError(f"{self.peer_url}: no reply on stream {stream:04x} within {timeout_s} s")
        self._give_up(stream, sequence, error)

    def _give_up(self, stream: int, sequence: int, error: AeonflowError) -> None:
        self._calls.abandon(stream, sequence, error)
        self.send_vent(stream, sequence, Vent(error.code, str(error), self.local.name))

    def _silent(self, silence_s: float) -> None:
        self._fail(LinkClosedError(f"{self.peer_url}: silent for {silence_s:.1f} s"))
        self._wire.abort()  # a peer that does not read would hold the closing handshake up

    def _fail(self, error: AeonflowError, close_code: int | None = None) -> None:
        self._shut(error, error.code, str(error), close_code)

    def _shut(self, error: AeonflowError | None, code: str, reason: str, close_code: int | None = None) -> None:
        """Goodbye, flush, close frame; then everyone who waits on this link is told. Only the first call counts."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.goodbye is None:
            self._send_connection_message(Goodbye(code, reason))
        self._batcher.close()
        self._wire.close(close_code or CLOSE_CODES.get(code, CLOSE_CODES["internal"]), reason)
        self._finish(error)

    def _finish(self, error: AeonflowError | None) -> None:
        self._is_closed = True
        self._error = error
        self._heart.stop()
        self._calls.fail_all(self._closed)
        self.on_writable()
        self._opening.ended(error or self._closed())
        if self.on_ended is not None:
            self.on_ended(self)
        if self.on_close is not None:
            try:
                self.on_close(error)
            except Exception as failure:
                logger.error("on_close of %s failed", self.peer_url, exc_info=failure)

    def _closed(self) -> LinkClosedError:
        return closed_error(self.peer_url, self._error, self.goodbye)
