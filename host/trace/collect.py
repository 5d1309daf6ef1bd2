"""Recording on a running engine: stations are asked to record, their clocks are compared, their events fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from aeonflow import bands
from aeonflow.assembly import Message
from aeonflow.errors import AeonflowError, DeadlineError, RemoteProtocolError
from aeonflow.messages import (
    Clock,
    GetClock,
    GetTrace,
    StartTrace,
    StopTrace,
    TraceEvent,
    TraceEvents,
    TraceReply,
    TraceRequest,
    decode_trace_reply,
    encode,
)
from aeonflow.trace import Recorder

from ..links import CONTROL_TIMEOUT_S, LinkState, StationLink, settle
from ..network import Network
from .recording import Recording, Track

MAX_EVENTS = 65536  # newest kept of each process: about 400 tokens of a station of trisplit with 30 layers
CLOCK_ROUND_TRIPS = 9


class Tracing:
    """One trace of one network: `start`, let things run, `collect`."""

    def __init__(self, network: Network, clock: Callable[[], float], *, max_events: int = MAX_EVENTS) -> None:
        self._network = network
        self._clock = clock
        self._max_events = max_events
        self._recorder = Recorder(max_events, clock)
        self._clocks: dict[int, tuple[int, float, float]] = {}  # station → incarnation, offset, error
        self._problems: dict[int, str] = {}
        self._began_s = 0.0

    async def start(self) -> None:
        """Ask every station to record, then record here. A station that does not is named in the trace."""
        await asyncio.gather(*(self._start_on(station) for station in self._network.stations))
        self._began_s = self._clock()
        self._network.use_trace(self._recorder)

    async def collect(self) -> Recording:
        """End the trace and bring everything home. What a station lost since does not have is its track's problem."""
        self._network.use_trace(None)
        ended_s = self._clock()
        host = Track(
            "host", self._recorder.take(self._max_events), urls=frozenset({""}), dropped=self._recorder.dropped
        )
        stations = await asyncio.gather(*(self._collect_from(station) for station in self._network.stations))
        return Recording((host, *stations), self._began_s, ended_s)

    async def _start_on(self, station: StationLink) -> None:
        try:
            await _ask(station, StartTrace(self._max_events), self._clock)
            offset_s, error_s = await _compare_clocks(station, self._clock)
            self._clocks[station.index] = (station.incarnation, offset_s, error_s)
        except AeonflowError as error:
            self._problems[station.index] = str(error)

    async def _collect_from(self, station: StationLink) -> Track:
        urls = frozenset({station.url})
        if station.incarnation and station.state is LinkState.READY:
            urls |= {station.hello.advertise or station.url}
        known = self._clocks.get(station.index)
        if known is None:
            return Track(station.name, urls=urls, problem=self._problems.get(station.index, "it was never asked"))
        incarnation, offset_s, error_s = known
        if incarnation != station.incarnation:
            return Track(station.name, urls=urls, problem="the connection was made anew, its events went with the old")
        try:
            events, dropped = await self._fetch(station)
        except AeonflowError as error:
            return Track(station.name, urls=urls, problem=str(error))
        moved = tuple(_moved(event, offset_s) for event in events)
        return Track(station.name, moved, station.hello.roles, urls, offset_s, error_s, dropped)

    async def _fetch(self, station: StationLink) -> tuple[list[TraceEvent], int]:
        events: list[TraceEvent] = []
        dropped = 0
        for _ in range(self._max_events):  # each reply holds an event or is the last
            reply, _ = await _ask(station, GetTrace(), self._clock)
            if not isinstance(reply, TraceEvents):
                raise RemoteProtocolError(f"station {station.name} answered with {type(reply).__name__}, not events")
            events += reply.events
            dropped = reply.dropped
            if not reply.left or not reply.events:
                break
        await _ask(station, StopTrace(), self._clock)
        return events, dropped


async def _compare_clocks(station: StationLink, clock: Callable[[], float]) -> tuple[float, float]:
    """(offset, error): what to subtract from the station's clock, from the middle of the shortest of some round trips.

    An offset within its own error is taken for 0: processes of one machine share one clock.
    """
    best_s, offset_s = float("inf"), 0.0
    for _ in range(CLOCK_ROUND_TRIPS):
        asked_s = clock()
        reply, answered_s = await _ask(station, GetClock(), clock)
        if not isinstance(reply, Clock):
            raise RemoteProtocolError(f"station {station.name} answered with {type(reply).__name__}, not its clock")
        if answered_s - asked_s < best_s:
            best_s = answered_s - asked_s
            offset_s = reply.now_s - (asked_s + answered_s) / 2
    error_s = best_s / 2
    return (0.0 if abs(offset_s) <= error_s else offset_s), error_s


async def _ask(station: StationLink, request: TraceRequest, clock: Callable[[], float]) -> tuple[TraceReply, float]:
    """The reply and when it came, noted in the reader: the wake-up of this task is not part of the round trip."""
    arrived: asyncio.Future[tuple[Message, float]] = asyncio.get_running_loop().create_future()

    def noted(reply: Message | AeonflowError) -> None:
        settle(arrived, reply if isinstance(reply, AeonflowError) else (reply, clock()))

    station.request(bands.TRACES, [encode(request)], noted)
    station.link.flush()
    try:
        async with asyncio.timeout(CONTROL_TIMEOUT_S):
            message, answered_s = await arrived
    except TimeoutError:
        raise DeadlineError(f"no answer about a trace from {station.name} within {CONTROL_TIMEOUT_S:g} s") from None
    try:
        return decode_trace_reply(message.payload), answered_s
    except Exception as error:
        raise RemoteProtocolError(f"station {station.name} sent what is no trace reply: {error}") from error


def _moved(event: TraceEvent, offset_s: float) -> TraceEvent:
    """The event on the host's clock."""
    if not offset_s:
        return event
    return msgspec.structs.replace(
        event,
        began_s=event.began_s - offset_s,
        ended_s=event.ended_s - offset_s,
        queued_s=event.queued_s - offset_s if event.queued_s else 0.0,
    )
