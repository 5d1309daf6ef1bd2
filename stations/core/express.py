"""The straight way of a decoded row: lanes found by the head of a message, made from passes that went the general way.

Taken while nothing waits, nothing is computed and nobody traces: then a row's turn is now. Where several sessions are
open only rows whose compute is short go this way: long ones gain more by sharing a batch. Every plain pass that the
general path has computed leaves a lane for the rows after it. What lanes took is counted as the general path counts
it, no later than anybody can ask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from aeonflow import bands
from aeonflow.frames import HEADER_BYTES
from aeonflow.tensors import GROW, PREFIX_BYTES, DType, Kind, Port

from ..kernels.base import PreparesRows, RowShape
from .addresses import HOST
from .batch import Batch
from .lanes import (
    HEAD_BYTES,
    HOP,
    PLACE,
    Cost,
    Exit,
    JoinedInput,
    Keeper,
    Lane,
    Sender,
    lane_key,
    row_head,
)
from .queue import Job
from .stages import Stage
from .station import Station

MAX_LANES = 4096  # of 10 KB; then those of past epochs go, and more are not made
SHARED_LIMIT_S = 0.25e-3  # a batch saves no more by sharing such computes than the general path costs beside them
MAX_EXITS = 2  # more outputs are framed together and flushed once, in the general way
TOLD_EVERY_ROWS = 32  # about a token of a station that has a role of every layer
_SHAPE = RowShape(data=HEAD_BYTES, place=PLACE, hop=HOP, crossing=1)
_PART_SHIFT, _PASS_OPTIONS = 3, 0b111
_INPUTS = {"embed": 1, "attn": 1, "gate_up": 1, "down": 2, "head": 1}  # roles that have lanes

Input = Lane | JoinedInput
LaneKey = tuple[int, int, Stage]  # session, epoch, stage


class Surroundings(Protocol):
    """What the shell knows and the core does not."""

    def successor(self, url: str) -> tuple[Sender, Keeper] | None:
        """The connection to a station, None while there is none."""
        ...

    def host(self, link: int) -> Sender | None:
        """The connection of a host."""
        ...

    def row_cost(self, stage: Stage) -> Cost:
        """What a row costs there."""
        ...

    def rows_came(self, link: int, session: int) -> None:
        """Of this session, by this link; told now and then."""
        ...


class Express:
    """`limit_s`: rows that take longer are not for the event loop.

    The shell says with `is_blocked` that the compute thread is at work. Before the general path sees a message it is
    given what `take_held` tells; `count` comes before a request of a host, `review` after it.
    """

    def __init__(self, station: Station, surroundings: Surroundings, limit_s: float) -> None:
        self.is_blocked = False
        self.is_alone = False  # one session is open
        self._station = station
        self._queue = station.queue
        self._preparer = station.backend if isinstance(station.backend, PreparesRows) else None
        self._surroundings = surroundings
        self._limit_s = limit_s
        self._route_changes = 0
        self._inputs: dict[bytes, Input] = {}  # of messages of stations
        self._ids: dict[bytes, Input] = {}  # of messages of the host that owns the session
        self._parts: dict[int, list[JoinedInput]] = {}  # by session
        self._lanes: dict[LaneKey, Lane | None] = {}  # None: has none
        self._messages = 0
        self._is_full = False  # of lanes that are in use; not looked at again before the next request

    @property
    def lanes(self) -> list[Lane]:
        """Those that there are now."""
        return [lane for lane in self._lanes.values() if lane is not None]

    @property
    def has_lanes(self) -> bool:
        return bool(self._lanes)

    def take(self, link: int, message: bytes, now: float) -> bool:
        """One whole WebSocket message of another station. True: it was a row for a lane, and is done with."""
        if type(message) is not bytes:
            return False
        found = self._inputs.get(lane_key(message))
        if found is None or len(message) != found.num_bytes or self.is_blocked or self._queue.length:
            return False
        if not found.take(link, message, now):
            return False
        self._messages += 1
        if not self._messages % TOLD_EVERY_ROWS:
            self._surroundings.rows_came(link, found.lane.session.id)
        return True

    def take_ids(self, link: int, message: bytes, now: float) -> bool:
        """The same of a host: tokens of its own sessions."""
        if type(message) is not bytes:
            return False
        found = self._ids.get(lane_key(message))
        if found is None or len(message) != found.num_bytes or self.is_blocked or self._queue.length:
            return False
        if found.lane.session.owner != link or not found.take(link, message, now):
            return False
        self._messages += 1
        return True

    def learn(self, batch: Batch) -> None:
        """Make the lanes of the rows that follow those of a batch, where they are plain."""
        if batch.stage.role in _INPUTS and self._preparer is not None and batch.error is None and not batch.poisoned:
            for job in batch.jobs:
                if job.head.rows == 1:
                    self._learn(job, self._preparer)

    def _learn(self, job: Job, preparer: PreparesRows) -> None:
        stage, head = job.stage, job.head
        at = (job.session.id, head.epoch, stage)
        if at in self._lanes:
            known = self._lanes[at]
            if known is None or head.first + 1 < known.limit:
                return
            self._count(known)
            if (parts := self._parts.get(job.session.id)) is not None:  # of such a lane none waits
                parts[:] = [part for part in parts if part.lane is not known]
        if len(self._lanes) >= MAX_LANES and not self._is_full:
            self._forget(lambda lane: lane.is_past)
            self._is_full = len(self._lanes) >= MAX_LANES
        if len(self._lanes) < MAX_LANES:
            self._lanes[at] = self._make(job, preparer) if self._is_plain(job) else None

    def take_held(self, session: int | None = None) -> list[tuple[int, bytes]]:
        """Parts that wait in lanes for their other part, with the links they came by; they wait here no longer.

        Of one session, or of all.
        """
        of = self._parts.get(session, []) if session is not None else itertools.chain(*self._parts.values())
        held: list[tuple[int, bytes]] = []
        for part in of:
            if part.message is not None:
                held.append((part.link, part.message))
                part.message = None
        self._messages -= len(held)  # the general path counts them
        return held

    def count(self) -> None:
        """Count what went through the lanes so far."""
        self._station.counters.events["messages_in"] += self._messages
        self._messages = 0
        for lane in self.lanes:
            self._count(lane)

    def review(self) -> None:
        """After a request, which may have changed anything: forget the lanes that it has made void."""
        station = self._station
        is_alone, changes = len(station.sessions) == 1, station.route_changes
        if station.trace is not None or (is_alone, changes) != (self.is_alone, self._route_changes):
            self.is_alone, self._route_changes = is_alone, changes
            self.clear()
        else:
            self._forget(lambda lane: lane.is_past)

    def clear(self) -> None:
        """Forget all lanes; what waits in them is given back before."""
        self._forget(lambda lane: True)

    def _forget(self, is_void: Callable[[Lane], bool]) -> None:
        self.count()
        kept: dict[LaneKey, Lane | None] = {
            at: lane for at, lane in self._lanes.items() if lane is not None and not is_void(lane)
        }
        self._lanes, self._is_full = kept, False
        for inputs in (self._inputs, self._ids):
            for key in [key for key, one in inputs.items() if is_void(one.lane)]:
                del inputs[key]
        for session in list(self._parts):
            self._parts[session] = [part for part in self._parts[session] if not is_void(part.lane)]
            if not self._parts[session]:
                del self._parts[session]

    def _count(self, lane: Lane) -> None:
        counters, (rows, took_ns) = self._station.counters, lane.take_counts()
        counters.computed_alone(lane.stage.role, rows, took_ns * 1e-9)
        counters.events["messages_forwarded"] += rows * len(lane.stage.edges or ())
        if lane.stage.role == "head":
            counters.events["answers"] += rows

    def _is_plain(self, job: Job) -> bool:
        stage, head, session, station = job.stage, job.head, job.session, self._station
        urls = [edge.url for edge in stage.edges or ()]
        return (
            job.caller is None
            and head.kind == Kind.CANONICAL
            and not head.options & GROW
            and head.hop > 0  # inside one process no message comes
            and (stage.form, stage.slots, stage.parts) == ("", _INPUTS[stage.role], 1)
            and not stage.seeds
            and not stage.shadowed
            and job.route.stages[stage.stream, stage.layer] == (stage,)
            and len(urls) <= MAX_EXITS
            and all(urls)
            and HOST not in urls
            and len(set(urls)) == len(urls)
            and not session.barriers
            and station.trace is None
            and session.epoch == head.epoch
            and not session.is_poisoned
            and not session.is_closed
        )

    def _make(self, job: Job, preparer: PreparesRows) -> Lane | None:
        stage, session = job.stage, job.session
        cache = session.caches[stage.layer] if stage.has_cache else None
        heads = self._output_heads(job)
        prepared = preparer.prepare_row(stage.role, stage.layer, cache, heads, _SHAPE) if heads else None
        if prepared is None:
            return None
        exits = self._exits(job, prepared.frames)
        if not exits or any(len(e.frame) - HEADER_BYTES > e.link.limits.max_message_bytes for e in exits):
            return None  # not connected, or the other side takes less: its host is told by the general path
        cost = self._surroundings.row_cost(stage)
        limit_s = self._limit_s if self.is_alone else min(self._limit_s, SHARED_LIMIT_S)
        if cost.seconds > limit_s:
            return None
        lane = Lane(job, prepared, cache, exits, cost, limit_s)
        self._open(lane, job)
        return lane

    def _output_heads(self, job: Job) -> list[bytes]:
        """The heads of the outputs' messages, in the order of the outputs; none where one goes nowhere, or twice."""
        stage, head, card = job.stage, job.head, self._station.card
        options = head.options & _PASS_OPTIONS | stage.part << _PART_SHIFT
        if stage.role == "head":
            return [row_head(head, bands.HEAD, stage.layer, Port.LOGITS, card.vocab_size, options=options)]
        width = card.ffn_size if stage.role == "gate_up" else card.hidden_size
        heads = {
            edge.output: row_head(
                head, edge.stream, edge.layer, edge.port, width, options=options, flags=int(edge.flags)
            )
            for edge in stage.edges or ()
        }
        outputs = range(len(stage.outputs))
        return [heads[output] for output in outputs] if sorted(heads) == list(outputs) else []

    def _exits(self, job: Job, frames: Sequence[memoryview]) -> list[Exit]:
        """Where the frames go, in the order of the edges; none while not all of it is connected."""
        stage = job.stage
        if stage.role == "head":
            host = self._surroundings.host(job.session.owner)
            return [Exit(host, frames[0], None)] if host is not None else []
        exits = []
        for edge in stage.edges or ():
            found = self._surroundings.successor(edge.url)
            if found is None:
                return []
            exits.append(Exit(found[0], frames[edge.output], found[1]))
        return exits

    def _open(self, lane: Lane, job: Job) -> None:
        """Messages of the lane's inputs are its from now on."""
        stage, head, is_ids = job.stage, job.head, job.stage.role == "embed"
        made: list[JoinedInput] = []
        for index, port in enumerate(stage.inputs):
            width = job.inputs[index].shape[1]
            num_bytes = HEADER_BYTES + PREFIX_BYTES + 4 * width
            dtype = DType.U32 if is_ids else DType.F32
            key = lane_key(row_head(head, stage.stream, head.layer, port, width, options=head.options, dtype=dtype))
            if len(stage.inputs) == 1:
                lane.num_bytes = num_bytes
                (self._ids if is_ids else self._inputs)[key] = lane
            else:
                part = JoinedInput(lane, num_bytes, is_first_input=index == 1)  # kernels take u, then h
                self._inputs[key] = part
                made.append(part)
        if made:
            h, u = made
            h.other, u.other = u, h
            self._parts.setdefault(job.session.id, []).extend(made)
