"""The stations of one engine and the sessions open on them: dial, route, dispatch, open, resume, close, loss.

Everything that arrives is dispatched here, in the readers' callbacks. A lost station fails the sessions that were
under way, is dialled again until it is back, and a fresh route then joins it to the others; nothing else is touched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from aeonflow.assembly import Message
from aeonflow.errors import (
    AeonflowError,
    CancelledCallError,
    LinkClosedError,
    RemoteProtocolError,
    RollbackError,
    StationLostError,
)
from aeonflow.frames import IS_VENT
from aeonflow.kv_options import Barrier, KvOptions
from aeonflow.messages import Cancel, Close, Open, Opened, Resume, Resumed, Route, decode_vent
from aeonflow.trace import Recorder

from .card import ModelBundle, fetch_bundle
from .chain import ChainPassage
from .errors import EngineClosedError
from .links import (
    CONTROL_TIMEOUT_S,
    DIAL_TIMEOUT_S,
    LOSS_NOTICE_S,
    LinkState,
    StationLink,
    check_alike,
    gather,
    vent_error,
)
from .pairx import NO_SEEDING, PairX
from .pairx.decide import decide
from .pairx.offers import check_drafts
from .plan import Plan
from .reconnect import Reconnector
from .relay import SeedCounts
from .sequence import TokenSequence
from .watch import Watch
from .ways import Ways

logger = logging.getLogger(__name__)

R = TypeVar("R")

MAX_DIALS_AT_ONCE = 16


class Network:
    """See the module. `start` once, `close` once; between them `open`, `resume`, `cancel`, `close_session`."""

    def __init__(
        self,
        *,
        is_relay: bool,
        deadline_s: float,
        idle_s: float,
        kv: KvOptions,
        pair_x: PairX,
        prefill_chunk: int | None,
        check: Callable[[Network], object],
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """`check` raises an AeonflowError for stations that may not work together; asked whenever all are there."""
        self.stations: list[StationLink] = []
        self.sequences: dict[int, TokenSequence] = {}
        self.stale = 0  # answers and errors dropped because they came for a past epoch or session
        self.strays = 0  # messages dropped because they are nothing a host is sent, or cannot be read
        self.is_relay = is_relay
        self.deadline_s = deadline_s
        self.idle_s = idle_s
        self.kv = kv
        self.seeding = NO_SEEDING  # which layers of the route take residual seeds
        self.seeds = SeedCounts()  # of this host, where it relays
        self.ways = Ways(clock)
        self._pair_x = pair_x
        self._prefill_chunk = prefill_chunk
        self.is_closed = False
        self._trace: Recorder | None = None
        self._check = check
        self._clock = clock
        self._rng = rng
        self._next_session = rng.getrandbits(39) << 24 | 1  # stations may serve several hosts: ids must not meet
        self._plan: Plan | None = None
        self._bundle: ModelBundle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reconnector = Reconnector(self._join, self._failed, self._spawn, rng)
        self._watch = Watch(
            self.sequences, lambda: self.stations, deadline_s=deadline_s, clock=clock, spawn=self._spawn
        )

    @property
    def bundle(self) -> ModelBundle:
        assert self._bundle is not None, "not started"
        return self._bundle

    @property
    def plan(self) -> Plan:
        assert self._plan is not None, "not started"
        return self._plan

    @property
    def route(self) -> Route:
        return self.ways.current.route

    @property
    def is_ready(self) -> bool:
        """Is every station connected and the route installed?"""
        return self._reconnector.ready.is_set()

    @property
    def trouble(self) -> str:
        """What keeps stations that are all connected from being joined."""
        return self._reconnector.trouble

    # Start and end.

    async def start(self, stations: Sequence[StationLink], make_plan: Callable[[Sequence[StationLink]], Plan]) -> None:
        """Dial all stations, check that they belong together, fetch the model's bundle, install the route."""
        self.stations = list(stations)
        gate = asyncio.Semaphore(MAX_DIALS_AT_ONCE)

        async def dial(station: StationLink) -> None:
            async with gate:
                await station.dial(DIAL_TIMEOUT_S)

        try:
            async with asyncio.TaskGroup() as group:
                for station in self.stations:
                    group.create_task(dial(station), name=f"dial {station.name}")
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        check_alike(self.stations)
        self._plan = make_plan(self.stations)
        self._bundle = await fetch_bundle(self._plan, self.stations)
        self.seeding = decide(self._pair_x, self._plan, self.bundle.card, self._prefill_chunk)
        check_drafts(self.seeding, self._plan, [station.hello for station in self.stations])
        await self._install_route()
        self._check(self)

    async def close(self) -> None:
        """End every session and task, say goodbye to every station. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._watch.stop()
        for sequence in list(self.sequences.values()):
            sequence.failed(EngineClosedError("the engine was left while this generation was running"))
            self.close_session(sequence)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(station.close() for station in self.stations), return_exceptions=True)

    async def wait_ready(self, timeout_s: float) -> None:
        """Until all stations are there. Raises StationLostError for the first that is not, after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._reconnector.ready.wait()
        except TimeoutError:
            for station in self.stations:
                if station.state is not LinkState.READY:
                    raise station.lost_error or StationLostError(f"station {station.name} is not connected") from None
            raise StationLostError(f"the stations are not joined again after {timeout_s:g} s: {self.trouble}") from None

    # Sessions.

    async def open(self, max_positions: int, kv: KvOptions | None = None) -> TokenSequence:
        """A new session on every station, KV for `max_positions` reserved. Raises the first station's refusal.

        `kv`: how this session's KV is kept; None as the engine's others.
        """
        if self.is_closed:
            raise EngineClosedError("the engine has been left")
        self.ways.lines.try_again()
        sequence = TokenSequence(self._next_session, self.ways.current, self._clock)
        sequence.detour = self.ways.detour(sequence.passage, 0)
        self._next_session += 1
        sequence.max_positions = max_positions
        sequence.kv = kv or self.kv
        sequence.trace = self._trace
        sequence.incarnations = tuple(station.incarnation for station in self.stations)
        self.sequences[sequence.session] = sequence
        try:
            await self._open_on(self.stations, sequence)
        except BaseException:
            self.close_session(sequence)
            raise
        self._watch.start()
        return sequence

    async def resume(self, sequence: TokenSequence, base: int) -> int:
        """Make the rows below `base` valid again after stations came back; returns how many are (a new epoch's base).

        Stations that are new to the session open it; all agree on the smallest number of rows that any still holds.
        """
        now = tuple(station.incarnation for station in self.stations)
        newcomers = [s for s, a, b in zip(self.stations, sequence.incarnations, now, strict=True) if a != b]
        if newcomers:
            for station in newcomers:
                station.tell(Close(sequence.session))  # an earlier try that was cut short may have opened it there
            await self._open_on(newcomers, sequence)
        passage = self.ways.current
        sequence.use(passage)
        sequence.begin_resumption(min(base, sequence.length))
        resume = Resume(sequence.session, sequence.epoch, sequence.base, passage.route_id)
        replies = await gather([(s, s.ask(resume)) for s in self.stations], CONTROL_TIMEOUT_S, "resume")
        if sequence.epoch != resume.epoch:
            raise CancelledCallError(f"session {sequence.session} went on in another epoch while it was resumed")
        have = min(_expect(Resumed, reply).have for reply in replies)
        sequence.incarnations = now
        if have < sequence.base:
            sequence.restart(have)
        sequence.detour = self.ways.detour(passage, sequence.base, sequence.detour)
        sequence.resumed()
        return sequence.base

    def mend(
        self,
        sequence: TokenSequence,
        error: AeonflowError,
        then: Callable[[], object],
        failed: Callable[[AeonflowError], object],
    ) -> bool:
        """Can passes that `error` ended go on from the rows that are answered for? True: that has begun, by `resume` in
        the background, and `then` will be called, or `failed` with what it raises."""
        if not isinstance(error, RollbackError) and not self.ways.leave_seeds(error, sequence.passage.route):
            return False

        async def recovering() -> None:
            try:
                await self.resume(sequence, sequence.length)
            except AeonflowError as error:
                failed(error)
            else:
                then()

        self._spawn(recovering(), f"resume session {sequence.session}")
        return True

    def is_intact(self, sequence: TokenSequence) -> bool:
        """May a new epoch begin on it just so: on the connections and by the way it was opened on, and no station given
        up on its rows?"""
        is_connected = sequence.incarnations == tuple(station.incarnation for station in self.stations)
        return is_connected and sequence.passage is self.ways.current and not sequence.is_poisoned

    def cancel(self, sequence: TokenSequence) -> None:
        """Stop what is under way for a session that lives on: a new epoch, told to every station at once."""
        sequence.restart(sequence.length)
        for station in self.stations:
            station.tell(Cancel(sequence.session, sequence.epoch, sequence.base))

    def close_session(self, sequence: TokenSequence) -> None:
        """Forget a session, here and at every station at once."""
        if self.sequences.pop(sequence.session, None) is not None:
            sequence.is_closed = True
            for station in self.stations:
                station.tell(Close(sequence.session))

    def use_trace(self, trace: Recorder | None) -> None:
        """Record what passes the links and what sessions wait for; None ends it."""
        self._trace = trace
        for station in self.stations:
            station.trace = trace
        for sequence in self.sequences.values():
            sequence.trace = trace

    async def _open_on(self, stations: Sequence[StationLink], sequence: TokenSequence) -> None:
        route, cache = self.ways.current.route_id, sequence.kv.to_wire()
        opening = Open(sequence.session, route, sequence.max_positions, cache, self.idle_s)
        replies = await gather([(s, s.ask(opening)) for s in stations], CONTROL_TIMEOUT_S, "open")
        found = {Barrier(*pair) for reply in replies for pair in _expect(Opened, reply).barriers}
        sequence.barriers = tuple(sorted(found.union(sequence.barriers)))

    # What arrives.

    def received(self, station: StationLink, message: Message) -> None:
        """Everything that is no reply: answers of the chain, errors of passes, what is to be sent on."""
        asked = self.ways.asked
        try:
            if IS_VENT[message.flags]:
                self._vented(station, message)
            elif isinstance(asked, ChainPassage) and message.stream in asked.streams:
                self.stale += not asked.take(station, message, self.sequences)
            else:
                self.strays += 1
        except (AeonflowError, msgspec.MsgspecError) as error:
            self.strays += 1
            logger.warning("station %s sent what cannot be read: %s", station.name, error)

    def _vented(self, station: StationLink, message: Message) -> None:
        vent = decode_vent(message.payload)
        sequence = self.sequences.get(vent.session)
        is_of_a_pass = vent.first >= 0  # else the whole session was refused, whatever its epoch
        if sequence is None or (is_of_a_pass and not sequence.is_current(vent.epoch)):
            self.stale += 1
            return
        error = vent_error(message)
        if isinstance(error, StationLostError | LinkClosedError):  # maybe before our own link to that station breaks
            loop = asyncio.get_running_loop()
            loop.call_later(LOSS_NOTICE_S, self._lost_to_a_neighbour, sequence, sequence.epoch, error)
        else:
            sequence.failed(error)

    def _lost_to_a_neighbour(self, sequence: TokenSequence, epoch: int, error: AeonflowError) -> None:
        """A station reported another lost, some time ago. While the host itself is finding out why a station is lost,
        that will say more, and fails every session under way."""
        if not self._reconnector.is_explaining:
            sequence.failed_if_current(epoch, error)

    # Loss and return.

    def lost(self, station: StationLink) -> None:
        """A link broke: what was under way fails once it is known why, and the station is dialled until it is back."""
        if not self.is_closed:
            self._reconnector.lost(station)

    def _failed(self, error: StationLostError) -> None:
        for sequence in list(self.sequences.values()):
            if sequence.oldest_in_flight is not None:
                sequence.failed(error)

    async def _join(self) -> None:
        """Install a fresh route if no station is missing. Raises what keeps them from working together."""
        if all(station.state is LinkState.READY for station in self.stations):
            check_alike(self.stations)
            check_drafts(self.seeding, self.plan, [station.hello for station in self.stations])
            self._check(self)
            await self._install_route()

    async def _install_route(self) -> None:
        """Install a fresh route on every station; with the last answer the network is ready."""
        card = self.bundle.card
        await self.ways.install(
            self.plan, self.seeding, card.residual, self.stations, card.vocab_size, self.seeds,
            is_relay=self.is_relay, next_id=lambda: self._rng.getrandbits(31) | 1,
        )  # fmt: skip
        self._reconnector.joined()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed: %s", task.get_name(), error)


def _expect(kind: type[R], reply: object) -> R:
    if not isinstance(reply, kind):
        raise RemoteProtocolError(f"a station answered with {type(reply).__name__}, expected {kind.__name__}")
    return reply
