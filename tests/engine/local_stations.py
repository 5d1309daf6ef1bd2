"""Real stations on real sockets in the test's own process: cores, shells and links as in a station process.

What a process would add (start-up, signals, exit) is tested with the launcher; here many plans run in a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aeonflow import Hello, Link, Message, Server, connect, serve, station_key
from aeonflow.messages import PROTOCOL_VERSION
from host.plan import Plan, StationSpec, make_plan
from stations.core.drafts import draft_offer
from stations.core.limits import limits_for
from stations.core.station import Station
from stations.kernels import Backend, make_backend
from stations.kernels.reference.backend import ReferenceBackend
from stations.models.documents import Bundle, encode_bundle
from stations.models.folder import ModelFolder
from stations.models.roles import parse_roles
from stations.models.synthetic import build_synthetic
from stations.server.shell import Shell

TOKEN = "a-secret-for-the-tests-of-one-fleet"
KV_BUDGET_BYTES = 256 << 20
TINY = "synthetic:layers=4,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=512,context=512,seed=3"


def tiny_model(folder: Path) -> ModelFolder:
    """A generated model of four layers."""
    return build_synthetic(TINY, folder)


class LocalStation:
    """One station: its shell, its server, and what a test may ask of it."""

    def __init__(self, spec: StationSpec, model: ModelFolder, port: int = 0, kernels: str = "reference") -> None:
        self.spec = spec
        self.kernels = kernels
        self.port = port
        self.model = model
        self._server: Server | None = None
        self._shell: Shell | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def core(self) -> Station:
        assert self._shell is not None
        return self._shell.station

    @property
    def num_sessions(self) -> int:
        return len(self.core.sessions)

    async def start(self) -> None:
        model, spec = self.model, self.spec
        card = model.card
        spans = parse_roles(spec.roles_text, card.num_layers)
        if self.kernels == "reference":
            backend: Backend = ReferenceBackend(model, spans, row_by_row=True)
        else:
            backend = make_backend(self.kernels, model, spans)
        limits = limits_for(card, KV_BUDGET_BYTES)
        core = Station(spec.name, card, spans, backend, limits, now=time.monotonic(), pid=0)
        hello = Hello(
            PROTOCOL_VERSION,
            spec.name,
            "station",
            roles=tuple(str(role) for role in spec.roles),
            fingerprint=card.fingerprint,
            numerics=backend.numerics_id,
            kernels=backend.name,
            limits=limits.announced(),
            context_length=card.context_length,
            num_layers=card.num_layers,
            draft=draft_offer(spans),
        )
        bundle = encode_bundle(Bundle(card, model.tokenizer_json, model.manifest))

        async def dial(url: str, on_message: Any, on_close: Any) -> Link:
            return await connect(
                url,
                hello=hello,
                token=station_key(TOKEN),
                transport="websockets",
                on_message=on_message,
                on_close=on_close,
            )

        def answer_weights(message: Message, max_bytes: int) -> bytes:
            return bundle

        self._shell = Shell(core, dial, answer_weights=answer_weights)
        self._server = await serve(
            "127.0.0.1", self.port, hello=hello, token=TOKEN, on_link=self._shell.add_link, transport="websockets"
        )
        self.port = self._server.port

    async def stop(self) -> None:
        shell, self._shell = self._shell, None
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        if shell is not None:
            await shell.close()


class LocalFleet:
    """The stations of a plan."""

    def __init__(self, plan: Plan, model: ModelFolder, kernels: str = "reference") -> None:
        self.plan = plan
        self.stations = [LocalStation(spec, model, kernels=kernels) for spec in plan.stations]

    @property
    def urls(self) -> list[str]:
        return [station.url for station in self.stations]

    def station(self, name: str) -> LocalStation:
        return next(station for station in self.stations if station.spec.name == name)

    def sessions(self) -> list[int]:
        """Open sessions of each station."""
        return [station.num_sessions for station in self.stations]

    async def until(self, holds: Callable[[LocalFleet], bool], timeout_s: float = 60.0) -> None:
        """Until the stations, which run in this loop, have come to where `holds` is true."""
        async with asyncio.timeout(timeout_s):
            while not holds(self):  # noqa: ASYNC110  there is no event for another side's inner state
                await asyncio.sleep(0)


@asynccontextmanager
async def local_fleet(plan: str, model: ModelFolder, kernels: str = "reference") -> AsyncIterator[LocalFleet]:
    """A fleet for a plan's text, stopped at the end."""
    fleet = LocalFleet(make_plan(plan, model.card.num_layers), model, kernels)
    try:
        for station in fleet.stations:
            await station.start()
        yield fleet
    finally:
        for station in fleet.stations:
            await station.stop()
