"""The host's links to its stations: one persistent connection each, requests matched to replies, loss noticed.

A request is sent under the host's own sequence and its reply reaches a callback straight from the reader, so that
the hot path makes no task and no future. What is no reply (results of a chain, errors of a pass) goes to one
handler for all stations. Knows nothing of sessions, plans or models.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from aeonflow import bands
from aeonflow.assembly import Message
from aeonflow.errors import (
    AeonflowError,
    CallError,
    DeadlineError,
    LinkClosedError,
    RemoteProtocolError,
    StationLostError,
    VersionMismatchError,
    from_code,
)
from aeonflow.frames import IS_VENT, Flags
from aeonflow.link import Link
from aeonflow.messages import Hello, Reply, Request, WeightsRequest, decode_reply, decode_vent, encode
from aeonflow.trace import Recorder

from .contracts import StationProcess
from .fleet.errors import describe_exit, describe_log

R = TypeVar("R")

DIAL_TIMEOUT_S = 10.0  # TCP, TLS, the upgrade and both hellos
CONTROL_TIMEOUT_S = 10.0  # open, resume, where, stats: a station answers those between two batches
EXIT_NOTICE_S = 1.0  # after a connection broke, for the process to be reaped and its last words read
EXIT_POLL_S = 0.01
LOSS_NOTICE_S = 1.5  # what meets a lost station may be known before why it was lost, which says more

Pieces = Sequence[bytes | bytearray | memoryview]
OnReply = Callable[[Message | AeonflowError], None]
OnMessage = Callable[[Message], None]
OnClose = Callable[[AeonflowError | None], None]


class Dial(Protocol):
    """Opens the connection to one station, in whatever way it is reached."""

    def __call__(
        self,
        url: str,
        *,
        on_message: OnMessage,
        on_close: OnClose,
    ) -> Awaitable[Link]: ...


class LinkState(enum.StrEnum):
    DIALLING = "dialling"
    READY = "ready"
    LOST = "lost"
    CLOSED = "closed"


class StationLink:
    """The connection to one station, over all its lives. `incarnation` counts the connections made."""

    def __init__(
        self,
        index: int,
        url: str,
        dial: Dial,
        *,
        name: str = "",
        process: StationProcess | None = None,
        on_message: Callable[[StationLink, Message], None],
        on_lost: Callable[[StationLink], None],
    ) -> None:
        self.index = index
        self.name = name or url
        self.url = url  # where it was last dialled
        self.state = LinkState.DIALLING
        self.incarnation = 0
        self.pid = 0
        self.process = process
        self.lost_error: StationLostError | None = None
        self.trace: Recorder | None = None  # while a trace is recorded
        self._dial = dial
        self._on_message = on_message
        self._on_lost = on_lost
        self._link: Link | None = None
        self._pending: dict[int, tuple[int, OnReply]] = {}

    @property
    def link(self) -> Link:
        """The live connection. Raises StationLostError when there is none."""
        if self._link is None or self.state is not LinkState.READY:
            raise self.lost_error or StationLostError(f"station {self.name} at {self.url} is not connected")
        return self._link

    @property
    def hello(self) -> Hello:
        """What the station said of itself at the last handshake."""
        assert self._link is not None, "not dialled yet"
        return self._link.remote

    @property
    def transport(self) -> str:
        """Name of the transport of the last connection; empty before the first."""
        return self._link.transport if self._link is not None else ""

    @property
    def is_remote(self) -> bool:
        """True when messages leave this process: such a crossing is a hop."""
        return self._link is not None and self._link.transport != "memory"

    async def dial(self, timeout_s: float) -> None:
        """Connect and shake hands. Raises the link's error, or DeadlineError naming the station."""
        self.state = LinkState.DIALLING
        if self.process is not None:
            self.url = self.process.url or self.url  # a restarted process may have moved
        url = self.url
        try:
            async with asyncio.timeout(timeout_s):
                link = await self._dial(url, on_message=self._received, on_close=self._closed)
        except TimeoutError:
            raise DeadlineError(f"station {self.name} at {url} did not answer within {timeout_s:g} s") from None
        if link.is_closed:
            raise LinkClosedError(f"station {self.name} at {url} closed the connection at once")
        self._link = link
        self.name = link.remote.name or self.name
        self.pid = link.remote.pid
        self.incarnation += 1
        self.lost_error = None
        self.state = LinkState.READY

    def send(self, stream: int, pieces: Pieces, *, sequence: int | None = None, flags: Flags = Flags.FIN) -> None:
        """A one-way message under the next sequence, or its own."""
        link, trace = self.link, self.trace
        began_s = trace.clock() if trace is not None else 0.0
        link.send(stream, link.next_sequence() if sequence is None else sequence, pieces, flags)
        if trace is not None:
            trace.sent(began_s, stream, flags, pieces, self.url)

    def request(self, stream: int, pieces: Pieces, on_reply: OnReply) -> None:
        """A call; `on_reply` gets the reply or the error exactly once, from the reader. Raises if it cannot be sent."""
        link, trace = self.link, self.trace
        began_s = trace.clock() if trace is not None else 0.0
        sequence = link.next_sequence()
        link.send(stream, sequence, pieces)
        if trace is not None:
            trace.sent(began_s, stream, Flags.FIN, pieces, self.url)
        self._pending[sequence] = (stream, on_reply)

    def ask(self, request: Request | WeightsRequest, stream: int = bands.CONTROL) -> asyncio.Future[Message]:
        """A call whose reply is awaited; the future fails with the station's typed error."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        try:
            self.request(stream, [encode(request)], lambda reply: settle(future, reply))
        except AeonflowError as error:
            future.set_exception(error)
        return future

    def tell(self, request: Request) -> None:
        """A call whose reply nobody waits for; a station that is gone needs no telling."""
        if self.state is LinkState.READY:
            try:
                self.request(bands.CONTROL, [encode(request)], _ignore_reply)
            except LinkClosedError:
                pass  # its loss is reported by on_close

    async def close(self) -> None:
        """Say goodbye and close; pending requests fail."""
        self.state = LinkState.CLOSED
        link, self._link = self._link, None
        if link is not None:
            await link.close("done")
        self.fail_pending(LinkClosedError(f"the link to station {self.name} was closed"))

    async def explain_loss(self) -> StationLostError:
        """The error for a lost connection, with the exit status and last log lines once the process is reaped."""
        assert self.lost_error is not None, "the link is not lost"
        process = self.process
        if process is None:
            return self.lost_error
        for _ in range(int(EXIT_NOTICE_S / EXIT_POLL_S)):
            if process.pid != self.pid:
                break
            await asyncio.sleep(EXIT_POLL_S)
        if process.pid == self.pid:
            ended = f"its process {self.pid} still runs"
        else:
            status = process.exit_status
            ended = describe_exit(status) if status is not None else f"its process {self.pid} is gone"
            ended += describe_log(tuple(process.log_tail()))
        self.lost_error = StationLostError(f"{self.lost_error}; {ended}")
        return self.lost_error

    def fail_pending(self, error: AeonflowError) -> None:
        """Every request under way fails with `error`."""
        pending, self._pending = self._pending, {}
        for _, on_reply in pending.values():
            on_reply(error)

    def _received(self, message: Message) -> None:
        trace = self.trace
        if trace is None:
            self._dispatch(message)
            return
        began_s = trace.clock()
        self._dispatch(message)
        trace.received(began_s, message.stream, message.flags, message.payload)

    def _dispatch(self, message: Message) -> None:
        pending = self._pending.get(message.sequence)
        if pending is None or pending[0] != message.stream:
            self._on_message(self, message)
            return
        del self._pending[message.sequence]
        pending[1](vent_error(message) if IS_VENT[message.flags] else message)

    def _closed(self, error: AeonflowError | None) -> None:
        if self.state is not LinkState.READY:
            return
        self.state = LinkState.LOST
        why = str(error).removeprefix(f"{self.url}: ") if error else ""
        self.lost_error = StationLostError(f"station {self.name} at {self.url} is lost" + (f": {why}" if why else ""))
        self._on_lost(self)


def settle(future: asyncio.Future[R], reply: R | AeonflowError) -> None:
    """Give who waits the reply or the error, unless they have given up."""
    if future.done():
        return
    if isinstance(reply, AeonflowError):
        future.set_exception(reply)
    else:
        future.set_result(reply)


async def gather(
    asked: Iterable[tuple[StationLink, asyncio.Future[Message]]], timeout_s: float, what: str
) -> list[Reply]:
    """The control replies, in order. Raises the first error found, or DeadlineError naming who has not answered."""
    pairs = list(asked)
    try:
        _, late = await asyncio.wait([future for _, future in pairs], timeout=timeout_s)
    finally:
        _let_go(future for _, future in pairs)
    if late:
        names = ", ".join(station.name for station, future in pairs if future in late)
        raise DeadlineError(f"no answer to {what} within {timeout_s:g} s from {names}")
    return [_decode(station, future.result()) for station, future in pairs]


async def answers(stations: Sequence[StationLink], request: Request, kind: type[R], timeout_s: float) -> dict[int, R]:
    """The replies of those connected stations that answer with a `kind` in time, by index; nonsense is no answer."""
    asked = {s.index: s.ask(request) for s in stations if s.state is LinkState.READY}
    try:
        if asked:
            await asyncio.wait(asked.values(), timeout=timeout_s)
    finally:
        _let_go(asked.values())
    found: dict[int, R] = {}
    for index, future in asked.items():
        if not future.cancelled() and future.exception() is None:
            with contextlib.suppress(msgspec.MsgspecError):
                reply = decode_reply(future.result().payload)
                if isinstance(reply, kind):
                    found[index] = reply
    return found


def _let_go(asked: Iterable[asyncio.Future[Message]]) -> None:
    """Nobody waits any more: for those that are not answered, nor for the errors of others."""
    for future in asked:
        if not future.done():
            future.cancel()
        elif not future.cancelled():
            future.exception()  # seen: several may fail for one cause, and one is raised


def check_alike(stations: Sequence[StationLink]) -> None:
    """VersionMismatchError, naming both values and stations, unless all serve the same model."""
    known = [station for station in stations if station.incarnation]
    for station in known:
        if station.hello.fingerprint != known[0].hello.fingerprint:
            raise VersionMismatchError(
                f"station {known[0].name} serves the model {known[0].hello.fingerprint or 'unnamed'}, "
                f"station {station.name} serves {station.hello.fingerprint or 'unnamed'}"
            )


def vent_error(message: Message) -> AeonflowError:
    """The typed error that a VENT message carries, its text led by the station's name."""
    try:
        vent = decode_vent(message.payload)
    except msgspec.MsgspecError as error:  # who waits for this reply must hear of it all the same
        return CallError(f"a VENT on stream {message.stream:04x} that does not decode: {error}")
    named = f"station {vent.station}: {vent.message}" if vent.station else vent.message
    return from_code(vent.code, named)


def _decode(station: StationLink, message: Message) -> Any:
    try:
        return decode_reply(message.payload)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"station {station.name} sent a reply that is no control message: {error}") from error


def _ignore_reply(reply: Message | AeonflowError) -> None:
    return None
