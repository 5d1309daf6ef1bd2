"""The event loop's side of a station: messages from links into the core, batches to the kernels, effects to links.

Short batches run inline, longer ones in the one compute thread, never both at once; frames, pings and cancels are read
meanwhile. No task is made for a message. One shell serves a process of its own or, embedded, a host's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from aeonflow import Flags, Heartbeat, Link, Message, bands
from aeonflow.assembly import read_message
from aeonflow.endpoint import is_loopback
from aeonflow.errors import AeonflowError, NotForYouError, StationLostError, UnsupportedError
from aeonflow.tensors import session_of
from aeonflow.turn import turn_of

from ..core.batch import Batch
from ..core.express import Express
from ..core.stages import Stage
from ..core.station import Station
from ..core.trace import record_batch
from .compute_thread import ComputeThread
from .costs import INLINE_LIMIT_S, CostModel, Estimate
from .machine import resident_bytes
from .peers import Dial, Peer, PeerOptions, Peers
from .placement import Placement, usable_cores
from .sender import Sender

TICK_S = 1.0
TURN_S = 0.5e-3  # of inline batches in a row; then frames are read
DRAIN_POLL_S = 0.05
_IN_ERROR = int(Flags.VENT | Flags.POISON)
QUIET_S = 1.0  # a session unused for so long does not keep a draining station

AnswerWeights = Callable[[Message, int], bytes]  # request, largest reply in bytes → reply


class Shell:
    """Runs `station` in the running event loop. `answer_weights` serves af40; None: this station has none to give."""

    def __init__(
        self,
        station: Station,
        dial: Dial,
        *,
        answer_weights: AnswerWeights | None = None,
        peer_options: PeerOptions = PeerOptions(),  # noqa: B008 — frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.station = station
        self.on_drain: Callable[[], None] | None = None  # a host asked the station to leave
        self.links: dict[int, Link] = {}
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._at_end_of_turn = turn_of(self._loop).schedule
        self._events = station.counters.events
        self._answer_weights = answer_weights
        self._next_link = 0
        self._costs = CostModel()
        self._thread = ComputeThread(self._loop, station.name)
        self._running: Batch | None = None
        self._running_since_s = 0.0
        self._is_scheduled = False
        self._is_closed = False
        self._peers = Peers(
            dial,
            allowed_urls=station.dial_urls,
            on_link=lambda link: link.set_heartbeat(self.heartbeat),
            on_lost=self._peer_lost,
            on_unsent=station.unsent,
            options=peer_options,
        )
        self._send_outgoing = Sender(station, self.links, self._peers).send_outgoing
        self._placement = Placement(usable_cores())
        self.express = Express(station, self, INLINE_LIMIT_S)
        station.use_gauges(self.gauges)
        station.use_clock(time.perf_counter)
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def add_link(self, link: Link) -> None:
        """A connection whose hello fits: from a host with the fleet's secret, or from another station."""
        number = self._next_link = self._next_link + 1
        self.links[number] = link
        self.station.link_opened(number, link.permission == "full")
        link.set_heartbeat(self.heartbeat)
        link.on_message = partial(self._received, number, link)
        link.on_close = partial(self._link_closed, number)
        take = self.express.take_ids if link.permission == "full" else self.express.take
        link.first_taker = partial(take, number)

    def heartbeat(self) -> Heartbeat:
        """Jobs that wait, and for how long the running batch has been computed."""
        busy_s = self._clock() - self._running_since_s if self._running is not None else 0.0
        return Heartbeat(self.station.queued, busy_s)

    def gauges(self) -> dict[str, Any]:
        """What Stats says of links and memory."""
        links = [*self.links.values(), *self._peers.links]
        stats = [link.stats for link in links]
        frames, messages = sum(s.frames_sent for s in stats), sum(s.messages_sent for s in stats)
        return {
            "links": len(self.links),
            "peers": len(self._peers.links),
            "frames_sent": frames,
            "frames_received": sum(s.frames_received for s in stats),
            "ws_messages_sent": messages,
            "ws_messages_received": sum(s.messages_received for s in stats),
            "bytes_sent": sum(s.bytes_sent for s in stats),
            "bytes_received": sum(s.bytes_received for s in stats),
            "delayed_messages": sum(s.delayed_messages for s in stats),
            "delay_obtained_s": sum(s.delay_obtained_s for s in stats),
            "frames_per_message": frames / messages if messages else 0.0,
            "busy_s": self.heartbeat().busy_s,
            "rss_bytes": resident_bytes(),
        }

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new sessions and wait until what runs has ended; False when `timeout_s` was not enough."""
        self.station.is_draining = True
        deadline = self._clock() + timeout_s
        while not self._is_quiet():
            if self._clock() >= deadline:
                return False
            await asyncio.sleep(DRAIN_POLL_S)
        return True

    async def close(self, reason: str = "the station leaves") -> None:
        """Say goodbye on every link and end the compute thread."""
        if self._is_closed:
            return
        self._is_closed = self.express.is_blocked = True
        self._ticker.cancel()
        self._placement.release()
        await asyncio.gather(self._peers.close(), *(link.close("drain", reason) for link in list(self.links.values())))
        self._thread.stop()

    def _is_quiet(self) -> bool:
        if self._running is not None or self.station.queued:
            return False
        return self._clock() - self.station.last_used_s() > QUIET_S

    def _received(self, number: int, link: Link, message: Message) -> None:
        stream = message.stream
        if stream == bands.WEIGHTS:
            self._weights(link, message)
            return
        is_request = stream not in bands.STREAM_ROLES and not bands.is_seed(stream)
        if self.express.has_lanes:
            is_pass = not is_request and not int(message.flags) & _IN_ERROR
            self._give_back(session_of(message.payload) if is_pass else None)
            if is_request:
                self.express.count()
        station = self.station
        trace = station.trace
        began_s = trace.clock() if trace is not None else 0.0
        station.receive(number, stream, message.sequence, message.flags, message.payload, self._clock())
        if trace is not None:
            trace.received(began_s, stream, message.flags, message.payload)
        if is_request:
            self._review()
        if not station.queue.length:
            self._send_outgoing()
            if stream == bands.CONTROL:
                self._after_control()
        elif self._running is None and not self._is_scheduled:
            self._is_scheduled = True
            # Of one session alone nothing more can come to share the batch than this message holds. Of several, what
            # other links have waiting is read first: one turn of the loop.
            if len(station.sessions) == 1:
                self._at_end_of_turn(self._pump)
            else:
                self._loop.call_soon(self._pump)

    def _give_back(self, session: int | None) -> None:
        """Parts that wait in lanes of a session, or of all, go to the general path first: it joins them."""
        for number, held in self.express.take_held(session):
            self.station.receive(number, *read_message(held), self._clock())

    def _review(self) -> None:
        """Sessions or routes may be others now."""
        self.express.review()
        if not self.express.is_alone:
            self._placement.release()

    def successor(self, url: str) -> tuple[Link, Peer] | None:
        """The connection to a station on an installed route, None while there is none."""
        try:
            peer = self._peers.get(url)
        except StationLostError:  # its route was replaced
            return None
        return (peer.link, peer) if peer.link is not None else None

    def host(self, link: int) -> Link | None:
        """The connection of a host."""
        return self.links.get(link)

    def rows_came(self, link: int, session: int) -> None:
        """Stations on one machine share a core while that session is alone."""
        if not self.express.is_alone or self._placement.core is not None:
            return
        if is_loopback(urlsplit(self.links[link].peer_url).hostname or ""):
            self._placement.serve(session, self._clock())

    def row_cost(self, stage: Stage) -> Estimate:
        """What one row costs at a stage."""
        return self._costs.estimate(stage.place, 1)

    def _after_control(self) -> None:
        if self.station.is_draining and self.on_drain is not None:
            on_drain, self.on_drain = self.on_drain, None
            on_drain()

    def _pump(self) -> None:
        """Compute what waits: inline while it is short, else by handing one batch to the thread."""
        self._is_scheduled = False
        station, clock = self.station, time.perf_counter
        begin = started = clock()
        while self._running is None and not self._is_closed:
            batch = station.next_batch()
            if batch is None:
                break
            if batch.can_wait:
                self._send_outgoing()
                started = clock()
            estimate = self._costs.estimate(batch.stage.place, batch.rows)
            if estimate.seconds > INLINE_LIMIT_S:
                self._running = batch
                self.express.is_blocked = True
                self._running_since_s = self._clock()
                self._events["batches_threaded"] += 1
                self._thread.submit(partial(self._compute, batch), partial(self._computed, batch, estimate))
                break
            self._events["batches_inline"] += 1
            station.compute(batch)
            ended = clock()
            if station.trace is not None:
                record_batch(station.trace, batch, started, ended)
            estimate.learn(ended - started)
            station.finish(batch, ended - started)
            self.express.learn(batch)
            if not station.queue.length:
                break
            if ended - begin > TURN_S:
                self._is_scheduled = True
                self._loop.call_soon(self._pump)
                break
            started = clock()
        self._send_outgoing()

    def _compute(self, batch: Batch) -> None:
        """In the compute thread."""
        batch.began_s = time.perf_counter()
        self.station.compute(batch)
        batch.seconds = time.perf_counter() - batch.began_s

    def _computed(self, batch: Batch, estimate: Estimate) -> None:
        self._running = None
        self.express.is_blocked = self._is_closed
        if self.station.trace is not None:
            record_batch(self.station.trace, batch, batch.began_s, batch.began_s + batch.seconds)
        if not self._is_closed:
            estimate.learn(batch.seconds)
            try:
                self.station.finish(batch, batch.seconds)
            finally:  # whatever went wrong with this batch, others wait
                self._pump()

    def _weights(self, link: Link, message: Message) -> None:
        """af40 is answered in the loop: a card, or a piece of a mapped file. Errors go back as VENTs, by the link."""
        if link.permission != "full":
            raise NotForYouError("weights are served to holders of the fleet's secret only")
        if self._answer_weights is None:
            raise UnsupportedError(f"station {self.station.name} serves no weights")
        reply = self._answer_weights(message, link.limits.max_message_bytes)
        link.send(bands.WEIGHTS, message.sequence, reply)

    def _link_closed(self, number: int, error: AeonflowError | None) -> None:
        if not self._is_closed:
            self._give_back(None)  # parts that came by this link, while the core knows it
        self.links.pop(number, None)
        self.station.link_closed(number)
        if not self._is_closed:
            self._review()
            self._send_outgoing()

    def _peer_lost(self, url: str, reason: str) -> None:
        if not self._is_closed:
            self._give_back(None)
            self.express.clear()
            self.station.station_lost(url, reason)
            self._send_outgoing()

    def _tick(self) -> None:
        num_sessions = len(self.station.sessions)
        self.station.tick(self._clock())
        if len(self.station.sessions) != num_sessions:  # lanes keep the caches of their sessions
            self._give_back(None)
            self._review()
        self._placement.tick(self._clock())
        self._peers.retire()
        self._send_outgoing()
        self._ticker = self._loop.call_later(TICK_S, self._tick)
