"""Stations on real sockets in the test's own process, and a host's end of their links."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aeonflow import Flags, Hello, Link, Message, Server, connect, serve, station_key
from aeonflow.bands import CONTROL
from aeonflow.errors import AeonflowError, from_code
from aeonflow.messages import (
    PROTOCOL_VERSION,
    InstallRoute,
    Open,
    Request,
    Route,
    StationAddress,
    decode_reply,
    decode_vent,
    encode,
)
from aeonflow.tensors import Tensor, pack_tensors, unpack_tensors
from stations.core.limits import limits_for
from stations.core.station import Station
from stations.kernels.base import Backend
from stations.kernels.reference import ReferenceBackend
from stations.models.folder import ModelFolder
from stations.models.roles import parse_roles
from stations.models.serve import WeightsServer
from stations.server.peers import PeerOptions
from stations.server.shell import Shell

from .cores import ROUTE, carriers_of

TOKEN = "the-secret-of-this-fleet"
WAIT_S = 20.0
HOST_HELLO = Hello(PROTOCOL_VERSION, "host", "host")


class Served:
    """One station: core, shell and server."""

    def __init__(
        self, model: ModelFolder, roles: str, name: str, backend: Backend | None, options: PeerOptions
    ) -> None:
        self.name = name
        self.port = 0
        self._model = model
        self._spans = parse_roles(roles, model.card.num_layers)
        self._backend = backend or ReferenceBackend(model, self._spans, row_by_row=True)
        self._options = options
        self.server: Server | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    async def start(self) -> None:
        card = self._model.card
        limits = limits_for(card, 64 << 20)
        self.core = Station(self.name, card, self._spans, self._backend, limits, now=time.monotonic(), pid=1)
        hello = Hello(
            PROTOCOL_VERSION, self.name, "station", roles=tuple(map(str, self._spans)), fingerprint=card.fingerprint,
            limits=limits.announced(),
        )  # fmt: skip

        async def dial(url: str, on_message: Any, on_close: Any) -> Link:
            return await connect(
                url, hello=hello, token=station_key(TOKEN), transport="websockets", on_message=on_message,
                on_close=on_close,
            )  # fmt: skip

        weights = WeightsServer(self._model).answer_message
        self.shell = Shell(self.core, dial, answer_weights=weights, peer_options=self._options)
        self.server = await serve(
            "127.0.0.1", self.port, hello=hello, token=TOKEN, on_link=self.shell.add_link, transport="websockets"
        )
        self.port = self.server.port

    async def stop(self) -> None:
        if self.server is not None:
            server, self.server = self.server, None
            await server.close()
            await self.shell.close()


class Host:
    """A host's links to some stations. `answers` gets what comes unasked."""

    def __init__(self, stations: Sequence[Served], num_layers: int, roles: Sequence[str]) -> None:
        self.stations = stations
        self.links: list[Link] = []
        self.answers: asyncio.Queue[Message] = asyncio.Queue()
        self._num_layers = num_layers
        self._carriers = carriers_of(roles, num_layers)

    async def dial(self, *, token: str = TOKEN) -> None:
        for link in self.links:
            await link.close()
        self.links = []
        for station in self.stations:
            link = await connect(station.url, hello=HOST_HELLO, token=token, transport="websockets")
            link.on_message = self.answers.put_nowait
            self.links.append(link)

    async def close(self) -> None:
        for link in self.links:
            await link.close()

    async def ask(self, index: int, request: Request) -> Any:
        reply = await self.links[index].call(CONTROL, encode(request), timeout_s=WAIT_S)
        return decode_reply(reply.payload)

    async def call(self, index: int, stream: int, *tensors: Tensor) -> list[Tensor]:
        """A relayed call."""
        pieces = pack_tensors(tensors)
        return unpack_tensors((await self.links[index].call(stream, pieces, timeout_s=WAIT_S)).payload)

    async def install(self, urls: Sequence[str] | None = None) -> None:
        addresses = [StationAddress(s.name, s.url) for s in self.stations]
        for index, url in enumerate(urls or ()):
            addresses[index] = StationAddress(self.stations[index].name, url or addresses[index].url)
        route = Route(ROUTE, self._num_layers, tuple(addresses), self._carriers)
        for index in range(len(self.links)):
            await self.ask(index, InstallRoute(route, index))

    async def open(self, session: int = 9) -> None:
        for index in range(len(self.links)):
            await self.ask(index, Open(session, ROUTE, 64))

    async def answer(self) -> list[Tensor]:
        """The next result; raises the error when a VENT comes instead."""
        message = await asyncio.wait_for(self.answers.get(), WAIT_S)
        if message.flags & Flags.VENT:
            raise vent_error(message)
        return unpack_tensors(message.payload)


def vent_error(message: Message) -> AeonflowError:
    vent = decode_vent(message.payload)
    return from_code(vent.code, vent.message)


@asynccontextmanager
async def serving(
    model: ModelFolder,
    roles: Sequence[str],
    *,
    backends: dict[int, Backend] | None = None,
    options: PeerOptions = PeerOptions(),  # noqa: B008 — frozen
) -> AsyncIterator[Host]:
    """Stations with these roles, running; a host that has dialled all of them."""
    stations = [Served(model, r, f"s{i}", (backends or {}).get(i), options) for i, r in enumerate(roles)]
    host = Host(stations, model.card.num_layers, roles)
    try:
        for station in stations:
            await station.start()
        await host.dial()
        yield host
    finally:
        await host.close()
        for station in stations:
            await station.stop()
