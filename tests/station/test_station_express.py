"""The straight way of decoded rows does what the general path does: the same random messages, the same everything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from aeonflow import Flags, Hello, Link, Message, bands, memory_pair
from aeonflow.errors import CallError
from aeonflow.messages import (
    PROTOCOL_VERSION,
    Close,
    InstallRoute,
    Open,
    Request,
    Route,
    StationAddress,
    Stats,
    Where,
    decode_reply,
    encode,
)
from aeonflow.tensors import DType, Kind, Port, Tensor, Want, pack_tensors
from stations.core import express
from stations.core.limits import limits_for
from stations.core.station import Station
from stations.kernels.base import Backend
from stations.kernels.fast.backend import FastBackend
from stations.models.folder import ModelFolder
from stations.models.roles import parse_roles
from stations.server import shell
from stations.server.costs import Estimate
from stations.server.shell import Shell

from .cores import KV_BUDGET, ROUTE, carriers_of, tensor

TRISPLIT = ["attn:0-2", "gate_up:0-2", "down:0-2", "embed,head"]
WAIT_S = 20.0
SEEDS, STEPS = 4, 90
SESSION, OTHER = 9, 10
# what depends on how rows were batched, on the clock, or is a gauge
NOT_COMPARED = {"batches", "batches_inline", "batches_threaded", "max_batch_jobs", "compute_s", "uptime_s"}


class GeneralOnly:
    """A kernel set that prepares no rows: every message goes the general way."""

    def __init__(self, backend: FastBackend) -> None:
        self.name, self.numerics_id = backend.name, backend.numerics_id
        for role in ("embed", "attn", "gate_up", "down", "head"):
            setattr(self, role, getattr(backend, role))


def hello(name: str, kind: str) -> Hello:
    return Hello(PROTOCOL_VERSION, name, kind)  # type: ignore[arg-type]


class One:
    """A station's shell with a host and a neighbour that send to it; what it sends anywhere is kept."""

    def __init__(self, model: ModelFolder, index: int, backend: Backend, spans: Any) -> None:
        core = Station("s", model.card, spans, backend, limits_for(model.card, KV_BUDGET), now=0.0, pid=1)
        self.sent: dict[str, list[tuple[int, int, bytes]]] = {}
        self.far: list[Link] = []
        self.shell = Shell(core, self._dial)
        self._carriers = carriers_of(TRISPLIT, model.card.num_layers)
        self._index = index
        self.host: Link
        self.neighbour: Link

    async def open(self) -> None:
        self.host, near = await memory_pair(hello("host", "host"), hello("s", "station"))
        self.shell.add_link(near)
        self.neighbour, near = await memory_pair(hello("n", "station"), hello("s", "station"))
        near.permission = "forward"
        self.shell.add_link(near)
        self.host.on_message = lambda message: self._keep("host", message)
        self.neighbour.on_message = lambda message: self._keep("neighbour", message)
        addresses = tuple(StationAddress(f"s{i}", f"ws://s{i}") for i in range(len(TRISPLIT)))
        await self.ask(InstallRoute(Route(ROUTE, 3, addresses, self._carriers), self._index))
        await self.ask(Open(SESSION, ROUTE, 64))

    async def ask(self, request: Request) -> Any:
        try:
            return decode_reply((await self.host.call(bands.CONTROL, encode(request), timeout_s=WAIT_S)).payload)
        except CallError as error:
            return error.code

    async def settle(self) -> None:
        """Until nothing moves: links hand over within a turn, the compute thread within a moment."""
        async with asyncio.timeout(WAIT_S):
            quiet = 0
            while quiet < 6:
                await asyncio.sleep(0)
                is_quiet = not self.shell.station.queued and self.shell.heartbeat().busy_s == 0.0
                quiet = quiet + 1 if is_quiet else 0

    async def attend(self, num_rows: int) -> None:
        """The neighbour sends the first rows of attention at layer 0, each once the one before is done with."""
        for first in range(num_rows):
            row = tensor(Port.X, np.full((1, self.shell.station.card.hidden_size), 0.5, np.float32), first=first)
            self.neighbour.send(bands.ATTN, first, pack_tensors([row]))
            await self.settle()

    async def state(self) -> Any:
        stats = await self.ask(Stats())
        core = self.shell.station
        session = core.sessions.get(SESSION)
        counted = {name: stats.values[name] for name in core.counters.snapshot() if name not in NOT_COMPARED}
        if session is None:
            return {**counted, "session": None}
        joins = (len(session.joins), core.sessions.join_gauge.num_bytes)
        rows = {layer: session.length(layer) for layer in range(3)}
        return {
            **counted, "epoch": (session.epoch, session.base), "settled": session.settled, "joins": joins, "rows": rows,
            "passed": dict(session.passed), "is_poisoned": session.is_poisoned,
        }  # fmt: skip

    def _keep(self, where: str, message: Message) -> None:
        self.sent.setdefault(where, []).append((message.stream, int(message.flags), bytes(message.payload)))

    async def _dial(self, url: str, on_message: Any, on_close: Any) -> Link:
        near, far = await memory_pair(hello("s", "station"), hello(url, "station"), on_message_a=on_message)
        near.on_close = on_close
        far.on_message = lambda message: self._keep(url, message)
        self.far.append(far)
        return near


@asynccontextmanager
async def both_ways(model: ModelFolder, index: int) -> AsyncIterator[tuple[One, One]]:
    spans = parse_roles(TRISPLIT[index], model.card.num_layers)
    backend = FastBackend(model, spans)
    ways = One(model, index, backend, spans), One(model, index, GeneralOnly(backend), spans)  # type: ignore[arg-type]
    try:
        for way in ways:
            await way.open()
        yield ways
    finally:
        for way in ways:
            await way.shell.close()
            for link in (way.host, way.neighbour, *way.far):
                await link.close()


class Traffic:
    """Messages for one station as its neighbours would send them, and now and then as nobody should."""

    def __init__(self, rng: random.Random, model: ModelFolder, index: int, session: int = SESSION) -> None:
        self._rng = rng
        self._session = session
        self._index = index
        self._hidden, self._ffn = model.card.hidden_size, model.card.ffn_size
        self._values = np.random.default_rng(rng.randrange(1 << 30))
        self.epoch, self.base, self.first, self.settled = 1, 0, 0, 0

    def passes(self) -> list[tuple[str, int, list[Tensor]]]:
        """(from whom, stream, tensors) of the next pass through all three layers."""
        rng = self._rng
        rows = rng.choice([1, 1, 1, 1, 1, 1, 3])
        if rng.random() < 0.1:
            self.epoch, self.base = self.epoch + 1, rng.randint(max(self.first - 3, 0), self.first)
            self.first = self.base
        self.settled = rng.randint(self.settled, max(self.base, self.settled))
        if self.first + rows > 40:
            self.epoch, self.base, self.first = self.epoch + 1, 3, 3
        messages: list[tuple[str, int, list[Tensor]]] = []
        for layer in range(3) if self._index < 3 else [0]:
            messages += self._stage(layer, rows)
        self.first += rows
        return [copy for message in messages for copy in self._perhaps_odd(message)]

    def _stage(self, layer: int, rows: int) -> list[tuple[str, int, list[Tensor]]]:
        if self._index == 0:
            return [("neighbour", bands.ATTN, [self._rows(Port.X, layer, rows)])]
        if self._index == 1:
            return [("neighbour", bands.GATE_UP, [self._rows(Port.N, layer, rows)])]
        if self._index == 2:
            parts = [("neighbour", bands.DOWN, [self._rows(port, layer, rows)]) for port in (Port.H, Port.U)]
            self._rng.shuffle(parts)
            return parts
        want = Want.LAST if rows == 1 else self._rng.choice([Want.LAST, Want.ALL, Want.NONE])
        ids = self._values.integers(0, 512, (rows, 1)).astype(np.uint32)
        return [
            ("host", bands.EMBED, [self._tensor(Port.IDS, ids, 0, dtype=DType.U32, want=want)]),
            ("neighbour", bands.HEAD, [self._rows(Port.X, 0, rows, want=want)]),
        ]

    def _rows(self, port: Port, layer: int, rows: int, **fields: Any) -> Tensor:
        width = self._ffn if port is Port.U else self._hidden
        array = self._values.standard_normal((rows, width)).astype(np.float32)
        if self._rng.random() < 0.005:
            array[0, self._rng.randrange(width)] = self._rng.choice([np.nan, np.inf])
        return self._tensor(port, array, layer, **fields)

    def _tensor(self, port: Port, array: Any, layer: int, **fields: Any) -> Tensor:
        values = {
            "session": self._session,
            "epoch": self.epoch,
            "base": self.base,
            "first": self.first,
            "settled": self.settled,
        }
        return tensor(port, array, layer=layer, **{"hop": self._rng.choice([4, 4, 4, 4, 7]), **values, **fields})

    def _perhaps_odd(self, message: tuple[str, int, list[Tensor]]) -> list[tuple[str, int, list[Tensor]]]:
        """The message, most of the time; else twice, not at all, or with something wrong about it."""
        way, stream, (one,) = message
        rng, dice = self._rng, self._rng.random()
        if dice < 0.95:
            return [message]
        if dice < 0.96:
            return [message, message]
        if dice < 0.965:
            return []
        changed: dict[str, Any] = rng.choice([
            {"first": one.first + 1}, {"first": max(one.first - 1, 0)}, {"epoch": max(one.epoch - 1, 0)},
            {"base": one.base + 1}, {"kind": Kind.DRAFT}, {"session": 77}, {"route": ROUTE + 1}, {"layer": 7},
            {"port": Port.A}, {"options": one.options | 1}, {"dim0": one.dim1, "dim1": one.dim0}, {"dtype": DType.U32},
            {"first": 63}, {"hop": 0xFFFF},
        ])  # fmt: skip
        return [message, (way, stream, [msgspec.structs.replace(one, **changed)])]


@pytest.mark.parametrize("index", range(4), ids=TRISPLIT)
async def test_random_messages_have_the_same_outcome_by_lanes_as_without(
    model: ModelFolder, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INLINE_LIMIT_S", 60.0)  # on a busy machine short batches are long ones
    monkeypatch.setattr(express, "SHARED_LIMIT_S", 60.0)
    lane_rows = sum([await _run(model, index, seed) for seed in range(SEEDS)])
    assert lane_rows > 20 * SEEDS, "most of the traffic is plain: it must have gone the straight way"


async def _run(model: ModelFolder, index: int, seed: int) -> int:
    """Both ways take the same traffic; returns how many rows went through lanes and were not counted yet."""
    rng = random.Random(100 * index + seed)
    traffics = [Traffic(rng, model, index), Traffic(rng, model, index, OTHER)]
    num_sessions = 1 + seed % 2
    lane_rows = 0
    async with both_ways(model, index) as ways:
        for one in ways:
            if num_sessions == 2:
                await one.ask(Open(OTHER, ROUTE, 64))
        for step in range(STEPS):
            for way, stream, tensors in traffics[step % num_sessions].passes():
                payload, flags = b"".join(pack_tensors(tensors)), Flags.FIN
                if rng.random() < 0.01:
                    flags |= rng.choice([Flags.POISON, Flags.FOLD, Flags.RACE])
                for one in ways:
                    link = one.host if way == "host" else one.neighbour
                    link.send(stream, step, payload, flags)
                    await one.settle()
            if rng.random() < 0.06:
                request = rng.choice([Where(SESSION), Open(OTHER, ROUTE, 64), Close(OTHER), Stats(), Stats()])
                answers = [await one.ask(request) for one in ways]
                assert isinstance(request, Stats) or answers[0] == answers[1]
            lane_rows += sum(lane.rows for lane in ways[0].shell.express.lanes)
        straight, general = ways
        assert await straight.state() == await general.state()
        assert straight.sent.keys() == general.sent.keys()
        for where, sent in straight.sent.items():
            assert sorted(sent) == sorted(general.sent[where])
    return lane_rows


async def test_a_request_finds_everything_counted_and_what_waits_in_lanes_in_the_joins(
    model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INLINE_LIMIT_S", 60.0)  # on a busy machine short batches are long ones
    rng = random.Random(1)
    traffic = Traffic(rng, model, 2)
    async with both_ways(model, 2) as ways:
        for first in range(6):
            for one in ways:
                for port in (Port.H, Port.U):
                    width = model.card.ffn_size if port is Port.U else model.card.hidden_size
                    row = tensor(port, np.full((1, width), 0.5, np.float32), first=first)
                    one.neighbour.send(bands.DOWN, first, pack_tensors([row]))
                    await one.settle()
        for one in ways:
            one.neighbour.send(bands.DOWN, 9, pack_tensors([traffic._rows(Port.H, 0, 1, first=6)]))
            await one.settle()
        assert [len(one.shell.station.sessions.get(SESSION).joins) for one in ways] == [0, 1]
        states = [await one.state() for one in ways]
        assert [state["joins"][0] for state in states] == [1, 1]
        assert [(state["jobs"], state["messages_in"]) for state in states] == [(6, 16), (6, 16)]


async def test_frames_that_came_in_one_message_are_rows_of_their_own(
    model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INLINE_LIMIT_S", 60.0)
    values = np.random.default_rng(3)
    async with both_ways(model, 2) as ways:
        for first in range(5):
            rows = [
                tensor(port, values.standard_normal((1, width)).astype(np.float32), first=first, layer=layer)
                for layer in range(3)
                for port, width in ((Port.H, model.card.hidden_size), (Port.U, model.card.ffn_size))
            ]
            for one in ways:
                for row in rows:
                    one.neighbour.send(bands.DOWN, first, pack_tensors([row]))
                await one.settle()
        straight, general = ways
        frames, messages = (getattr(straight.neighbour.stats, name) for name in ("frames_sent", "messages_sent"))
        assert frames > 4 * messages, "they were coalesced"
        rows_in_lanes = sum(lane.rows for lane in straight.shell.express.lanes)
        assert rows_in_lanes == 9, "of each layer the first went to the thread, the second left a lane"
        assert straight.sent == general.sent
        assert await straight.state() == await general.state()


async def test_a_part_whose_sender_has_gone_still_joins_and_no_request_fails_for_it(model: ModelFolder) -> None:
    async with both_ways(model, 2) as ways:
        for one in ways:
            for first in range(6):
                for port, width in ((Port.H, model.card.hidden_size), (Port.U, model.card.ffn_size)):
                    row = tensor(port, np.full((1, width), 0.5, np.float32), first=first)
                    one.neighbour.send(bands.DOWN, first, pack_tensors([row]))
                    await one.settle()
            h = tensor(Port.H, np.full((1, model.card.hidden_size), 0.5, np.float32), first=6)
            one.neighbour.send(bands.DOWN, 6, pack_tensors([h]))
            await one.settle()
            await one.neighbour.close()
            await one.settle()
        states = [await one.state() for one in ways]
        assert [state["joins"][0] for state in states] == [1, 1]
        assert states[0] == states[1]


@pytest.mark.parametrize("how", ["its host leaves", "it expires"])
async def test_lanes_keep_nothing_of_a_session_that_has_ended(
    model: ModelFolder, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INLINE_LIMIT_S", 60.0)
    async with both_ways(model, 0) as (straight, _):
        await straight.attend(6)
        assert straight.shell.express.lanes
        if how == "it expires":
            (session,) = straight.shell.station.sessions
            session.last_used_s -= 2 * session.idle_s
            straight.shell._ticker.cancel()
            straight.shell._tick()
        else:
            await straight.host.close()
            await straight.settle()
        assert len(straight.shell.station.sessions) == 0
        assert not straight.shell.express.lanes


async def test_lanes_that_are_made_anew_take_the_place_of_the_old_ones(
    model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INLINE_LIMIT_S", 60.0)
    async with both_ways(model, 2) as (straight, _):
        held = []
        for first in range(12):
            for port, width in ((Port.H, model.card.hidden_size), (Port.U, model.card.ffn_size)):
                row = tensor(port, np.full((1, width), 0.5, np.float32), first=first)
                straight.neighbour.send(bands.DOWN, first, pack_tensors([row]))
                await straight.settle()
            for lane in straight.shell.express.lanes:
                lane.limit = 0  # as a row that took long leaves it
            held.append(sum(map(len, straight.shell.express._parts.values())))
        assert held == [0] + [2] * 11


async def test_a_lane_bears_rows_that_were_preempted_and_ends_where_rows_have_become_long(
    model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INLINE_LIMIT_S", 60.0)
    async with both_ways(model, 0) as (straight, _):
        await straight.attend(3)
        (lane,) = straight.shell.express.lanes
        lane._cost, lane._limit_ns = Estimate(0.2e-3), 500_000

        def passes(took_ns: int) -> None:
            lane.rows, lane.took_ns = lane.rows + 1, lane.took_ns + took_ns
            if took_ns > lane._limit_ns:
                lane._was_long(took_ns)

        for _ in range(50):
            for _ in range(20):
                passes(200_000)
            passes(8_000_000)
        assert lane.limit > 0
        for _ in range(50):
            passes(600_000)
        assert lane.limit == 0


async def test_a_table_full_of_lanes_in_use_is_not_searched_for_every_row(
    model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INLINE_LIMIT_S", 60.0)
    monkeypatch.setattr(express, "MAX_LANES", 2)
    async with both_ways(model, 1) as (straight, _):
        way, searches = straight.shell.express, []
        forget = way._forget
        monkeypatch.setattr(way, "_forget", lambda is_void: (searches.append(1), forget(is_void)))
        for first in range(8):
            for layer in range(3):
                row = tensor(Port.N, np.full((1, model.card.hidden_size), 0.5, np.float32), first=first, layer=layer)
                straight.neighbour.send(bands.GATE_UP, first, pack_tensors([row]))
                await straight.settle()
        assert len(way.lanes) == 2
        assert len(searches) == 1
        await straight.ask(Stats())
        assert not way._is_full
