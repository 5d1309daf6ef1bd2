"""Cores of real stations joined by queues: every message and every batch is an event that a test may order as it likes.

Each connection is ordered, as a socket is; what the shell does with time and threads is left to the test's schedule.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from aeonflow import Flags, bands
from aeonflow.errors import AeonflowError, from_code
from aeonflow.kv_options import KvOptions
from aeonflow.messages import (
    Carrier,
    InstallRoute,
    Open,
    Request,
    Route,
    StationAddress,
    Vent,
    decode_reply,
    decode_vent,
    encode,
)
from aeonflow.tensors import PREFIX, DType, Kind, Port, Tensor, Want, options_byte, pack_tensors, unpack_tensors
from stations.core.batch import Batch
from stations.core.kv_layout import KvLayout
from stations.core.limits import limits_for
from stations.core.outgoing import ToLink, ToStation
from stations.core.station import Station
from stations.kernels.base import Backend, Span
from stations.kernels.reference import ReferenceBackend
from stations.models.folder import ModelFolder
from stations.models.roles import parse_roles

HOST = 1  # the host's link at every station
KV_BUDGET = 64 << 20
ROUTE = 5


class Answer(NamedTuple):
    """What came back to the host: an error, or a tensor message, or a control reply."""

    station: str
    message: ToLink

    @property
    def vent(self) -> Vent | None:
        return decode_vent(self.message.pieces[0]) if self.message.flags & Flags.VENT else None

    @property
    def tensors(self) -> list[Tensor]:
        return unpack_tensors(b"".join(self.message.pieces))

    @property
    def error(self) -> AeonflowError:
        assert self.vent is not None, self.tensors
        return from_code(self.vent.code, self.vent.message)


def f32(tensor: Tensor) -> Any:
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.dim0, tensor.dim1)


def make_core(
    model: ModelFolder, roles: str, name: str = "s", backend: Backend | None = None, **limits: Any
) -> Station:
    """A station without a shell, its host's link open."""
    spans = parse_roles(roles, model.card.num_layers)
    made = msgspec.structs.replace(limits_for(model.card, KV_BUDGET), **limits)
    station = Station(
        name, model.card, spans, backend or ReferenceBackend(model, spans, row_by_row=True), made, now=0.0, pid=1
    )
    station.link_opened(HOST, True)
    return station


def carriers_of(stations: Iterable[str], num_layers: int) -> tuple[Carrier, ...]:
    """Carriers of stations given by their roles."""
    return tuple(
        Carrier(index, span.role, span.lo, span.hi, span.part, span.parts)
        for index, roles in enumerate(stations)
        for span in parse_roles(roles, num_layers)
    )


def ids_tensor(ids: list[int], **fields: Any) -> Tensor:
    """Port IDS; `session` 9, epoch 1, on the test's route unless said otherwise."""
    return tensor(Port.IDS, np.array(ids, np.uint32).reshape(-1, 1), DType.U32, **fields)


def tensor(
    port: Port, array: Any, dtype: DType = DType.F32, *, want: Want = Want.LAST, part: int = 0, **fields: Any
) -> Tensor:
    """One tensor of `array` [rows, width]; prefix fields have the defaults of a first pass of session 9."""
    values: dict[str, Any] = {
        "session": 9, "epoch": 1, "base": 0, "settled": 0, "first": 0, "rows": array.shape[0], "layer": 0,
        "kind": Kind.CANONICAL, "port": port, "options": options_byte(want=want, part=part), "dtype": dtype,
        "route": ROUTE, "hop": 1, "dim0": array.shape[0], "dim1": array.shape[1], "data": array.tobytes(),
    }  # fmt: skip
    return Tensor(**{**values, **fields})


def receive(
    station: Station,
    stream: int,
    tensors: list[Tensor] | bytes,
    *,
    link: int = HOST,
    sequence: int = 7,
    flags: Flags = Flags.FIN,
    now: float = 0.0,
) -> list[Any]:
    """Give a station one message, compute everything that follows, and return what it sends."""
    payload = tensors if isinstance(tensors, bytes) else b"".join(pack_tensors(tensors))
    station.receive(link, stream, sequence, flags, payload, now)
    run_queue(station)
    return station.take_outgoing()


def run_queue(station: Station) -> None:
    while (batch := station.next_batch()) is not None:
        station.compute(batch)
        station.finish(batch, 0.001)


def ask(station: Station, request: Request, *, link: int = HOST, now: float = 0.0) -> Any:
    """A control call and its reply; raises the error it was refused with."""
    station.receive(link, bands.CONTROL, 3, Flags.FIN, encode(request), now)
    (sent,) = [m for m in station.take_outgoing() if isinstance(m, ToLink) and m.stream == bands.CONTROL]
    answer = Answer(station.name, sent)
    if answer.vent is not None:
        raise answer.error
    return decode_reply(sent.pieces[0])


class PlainModel:
    """The oracle: the same kernels, called one after the other over the whole model."""

    def __init__(self, model: ModelFolder) -> None:
        self._layers = model.card.num_layers
        self._layout = KvLayout(model.card, KvOptions())
        roles = parse_roles(f"embed,block:0-{self._layers - 1},head", self._layers)
        self._backend = ReferenceBackend(model, roles, row_by_row=True)

    def logits(self, ids: list[int]) -> Any:
        """Logits of every row, [len(ids), vocab]."""
        caches = [self._layout.new_cache(layer, len(ids)) for layer in range(self._layers)]
        x = self._backend.embed(np.array(ids, np.uint32), 0, 1)
        x = self._backend.block(0, self._layers - 1, x, [[Span(cache, 0, len(ids))] for cache in caches])
        return self._backend.head(x, 0, 1)


class CoreNet:
    """Stations of one route. `step(rng)` lets one thing happen; `run` goes on until nothing is left to happen."""

    def __init__(
        self, model: ModelFolder, stations: list[str], backends: dict[int, Backend] | None = None, **route: Any
    ) -> None:
        self.urls = [f"ws://s{index}" for index in range(len(stations))]
        self.stations = [
            make_core(model, roles, f"s{index}", (backends or {}).get(index)) for index, roles in enumerate(stations)
        ]
        addresses = tuple(StationAddress(f"s{i}", url) for i, url in enumerate(self.urls))
        carriers = carriers_of(stations, model.card.num_layers)
        self.route = Route(
            ROUTE, model.card.num_layers, addresses, carriers, **{"residual": model.card.residual, **route}
        )
        self.edges: dict[tuple[int, int], deque[tuple[int, int, bytes, Flags]]] = {}  # (from, to); -1 is the host
        self.running: dict[int, Batch] = {}
        self.answers: list[Answer] = []
        self.forwarded = 0
        for index, station in enumerate(self.stations):
            for other in range(len(self.stations)):
                if other != index:
                    station.link_opened(100 + other, False)
            ask(station, InstallRoute(self.route, index))

    def open(self, session: int = 9, max_positions: int = 64) -> None:
        for station in self.stations:
            ask(station, Open(session, ROUTE, max_positions))

    def send(self, one: Tensor) -> None:
        """A pass from the host to every embed part."""
        for carrier in self.route.carriers:
            if carrier.role == "embed":
                self.put(-1, carrier.station, bands.EMBED, b"".join(pack_tensors([one])), Flags.FIN)

    def step(self, rng: random.Random) -> bool:
        """One event at random: a delivery, a batch taken, or a batch finished. False when nothing can happen."""
        events: list[tuple[str, Any]] = [("deliver", edge) for edge, queue in self.edges.items() if queue]
        events += [("finish", index) for index in self.running]
        events += [("take", i) for i, s in enumerate(self.stations) if s.queued and i not in self.running]
        if not events:
            return False
        what, where = rng.choice(events)
        if what == "deliver":
            source, target = where
            stream, sequence, payload, flags = self.edges[where].popleft()
            link = HOST if source < 0 else 100 + source
            self.stations[target].receive(link, stream, sequence, flags, payload, 0.0)
            self.collect(target)
        elif what == "take":
            batch = self.stations[where].next_batch()
            if batch is not None:
                self.stations[where].compute(batch)
                self.running[where] = batch
            self.collect(where)
        else:
            self.stations[where].finish(self.running.pop(where), 0.001)
            self.collect(where)
        return True

    def run(self, rng: random.Random | None = None, limit: int = 100_000) -> list[Answer]:
        """Until nothing is left to happen; returns the answers that came meanwhile."""
        rng = rng or random.Random(0)
        before = len(self.answers)
        for _ in range(limit):
            if not self.step(rng):
                return self.answers[before:]
        raise AssertionError(f"still busy after {limit} events")

    def collect(self, index: int) -> None:
        """Take what a station sends and put it on its edges."""
        for message in self.stations[index].take_outgoing():
            if isinstance(message, ToStation):
                self.forwarded += 1
                session = self.stations[index].sessions.get(message.session)
                assert session is None or PREFIX.unpack_from(message.pieces[0])[1] >= session.epoch
                target = self.urls.index(message.url)
                sequence = 1 if message.sequence is None else message.sequence
                self.put(index, target, message.stream, b"".join(message.pieces), message.flags, sequence)
            else:
                pieces = [bytes(b"".join(message.pieces))] if not message.flags & Flags.VENT else message.pieces
                self.answers.append(Answer(self.stations[index].name, message._replace(pieces=pieces)))

    def put(self, source: int, target: int, stream: int, payload: bytes, flags: Flags, sequence: int = 1) -> None:
        """One message onto an edge."""
        self.edges.setdefault((source, target), deque()).append((stream, sequence, payload, flags))
