"""From options to stations: a fleet started for a plan, a station in this process, or addresses that were given.

The host's only dealings with model files are the names it passes on; what it must know before stations run (how many
layers there are to share out) it asks a child of the stations' own package.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl as ssl_module
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec

from aeonflow.endpoint import connect
from aeonflow.kv_options import KvOptions
from aeonflow.link import Link
from aeonflow.messages import PROTOCOL_VERSION, Hello

from .embedded import EmbeddedStation
from .errors import HostError, InvalidRequestError
from .fleet import Fleet, FleetStation, StationOptions
from .fleet.launcher import usable_cores
from .fleet.recorded import recorded_stations
from .fleet.state import FleetState
from .kv_options import exactness_options
from .links import Dial, OnClose, OnMessage, StationLink
from .network import Network
from .pairx import PairX, check_plan
from .plan import Plan, check, effect_of, from_hellos, make_plan
from .request import check_count
from .speculate.drafters import SpeculateMode

TRANSPORTS = ("auto", "websockets", "picows")
SOLO = "solo"
CONNECTED = "connected"  # the plan of stations that were only given by their addresses
MAX_SOLO_THREADS = 8  # more only wait for memory
VERB_TIMEOUT_S = 600.0  # generating a large model takes its time


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The keywords that `Engine.launch` and `Engine.connect` share."""

    route: str
    transport: str
    coalesce: bool
    link_delay_ms: float
    kv: KvOptions
    approximate: bool  # O(1) layers that are not shown to gain on the model
    prefill_chunk: int | None
    token: str | None
    exact: bool
    name: str | None
    deadline_s: float
    rejoin_s: float
    speculate: str
    pair_x: PairX

    def check(self) -> None:
        """InvalidRequestError for a value outside its range, UnsupportedOptionError for what is not built yet."""
        effect_of("route", self.route)
        effect_of("speculate", self.speculate)
        SpeculateMode.parse(self.speculate)
        self.pair_x.check()
        for option, value in exactness_options(self.kv).items():
            effect_of(option, value)
        if self.transport not in TRANSPORTS:
            raise InvalidRequestError(f"transport {self.transport!r}: allowed is {', '.join(TRANSPORTS)}")
        for name in ("link_delay_ms", "rejoin_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InvalidRequestError(f"{name} {value}: a number of at least 0 is needed")
        if not math.isfinite(self.deadline_s) or self.deadline_s <= 0:
            raise InvalidRequestError(f"deadline_s {self.deadline_s}: a number above 0 is needed")
        if self.prefill_chunk is not None:
            check_count("prefill_chunk", self.prefill_chunk)


class LaunchOptions(EngineOptions, frozen=True, kw_only=True):
    """The keywords of `Engine.launch`."""

    model: str
    plan: str
    kernels: str
    threads: int | None
    volumes: str

    @property
    def is_solo(self) -> bool:
        return self.plan == SOLO

    def check(self) -> None:
        """As for the shared ones."""
        super().check()
        for option in ("kernels", "volumes"):
            effect_of(option, getattr(self, option))
        if not self.model:
            raise InvalidRequestError("model '': a name, a path or synthetic:… is needed")
        if self.threads is not None and (isinstance(self.threads, bool) or self.threads < 1):
            raise InvalidRequestError(f"threads {self.threads}: at least 1 is needed")
        if self.is_solo and self.transport != "auto":
            raise InvalidRequestError(f"transport {self.transport!r}: plan solo is one process and has no sockets")
        if self.is_solo:
            check_plan(self.pair_x, make_plan(SOLO, 1))
        if self.exact and self.kernels == "reference":
            raise InvalidRequestError("exact and kernels 'reference' contradict each other: its cut is bounded")


class ConnectOptions(EngineOptions, frozen=True, kw_only=True):
    """The keywords of `Engine.connect`. `fleet`: whose stations these are, where its state is known."""

    urls: tuple[str, ...]
    ssl: ssl_module.SSLContext | None
    fleet: FleetState | None = None

    def check(self) -> None:
        """InvalidRequestError for a value outside its range."""
        super().check()
        if not self.urls:
            raise InvalidRequestError("0 station addresses: at least 1 is needed")
        for url in self.urls:
            if not url.startswith(("ws://", "wss://")):
                raise InvalidRequestError(f"station address {url!r}: ws://… or wss://… is needed")
        if len(set(self.urls)) < len(self.urls):
            raise InvalidRequestError(f"{len(self.urls)} station addresses, {len(set(self.urls))} different ones")
        if not self.token:
            raise InvalidRequestError("no token: the fleet's secret is needed to connect")


class Stations(NamedTuple):
    """Links not yet dialled, what makes the plan once they are, a name for the engine.

    `cores`: how many cores the stations share where all run here; None where they are elsewhere.
    """

    links: list[StationLink]
    make_plan: Callable[[Sequence[StationLink]], Plan]
    name: str
    cores: int | None


async def launched_stations(options: LaunchOptions, network: Network, stack: AsyncExitStack) -> Stations:
    """Start what the plan needs; `stack` stops it again. Raises before anything is left running."""
    if options.is_solo:
        return await _embedded_station(options, network, stack)
    model, num_layers = await find_model(options.model)
    plan = make_plan(options.plan, num_layers)
    check_plan(options.pair_x, plan)
    station_options = StationOptions(
        model=model,
        kernels=options.kernels,
        threads=options.threads or 1,
        transport=options.transport,
        coalesce=options.coalesce,
        link_delay_ms=options.link_delay_ms,
    )
    fleet = Fleet(plan.stations, station_options, name=options.name or "", token=options.token or "")
    await stack.enter_async_context(fleet)
    dial = network_dial(options, fleet.token)
    links = [
        StationLink(
            index,
            station.url,
            dial,
            name=station.name,
            process=station if isinstance(station, FleetStation) else None,
            on_message=network.received,
            on_lost=network.lost,
        )
        for index, station in enumerate(fleet.stations)
    ]
    return Stations(links, lambda _: plan, fleet.name, usable_cores())


def connected_stations(options: ConnectOptions, network: Network) -> Stations:
    """Links to stations that run already; their hellos say who carries what."""
    assert options.token is not None, "checked"
    dial = network_dial(options, options.token, options.ssl)
    fleet = options.fleet
    processes = recorded_stations(fleet) if fleet is not None and fleet.directory else [None] * len(options.urls)
    links = [
        StationLink(index, url, dial, process=process, on_message=network.received, on_lost=network.lost)
        for index, (url, process) in enumerate(zip(options.urls, processes, strict=True))
    ]
    name = fleet.plan if fleet is not None else CONNECTED

    def plan_of(stations: Sequence[StationLink]) -> Plan:
        hellos = [station.hello for station in stations]
        return check(from_hellos(hellos, hellos[0].num_layers, name, options.urls))

    return Stations(links, plan_of, fleet.name if fleet is not None else CONNECTED, None)


async def _embedded_station(options: LaunchOptions, network: Network, stack: AsyncExitStack) -> Stations:
    model = options.model
    if model.startswith("synthetic:"):
        model, _ = await find_model(model)
    threads = options.threads or min(usable_cores(), MAX_SOLO_THREADS)
    hello = host_hello(options.kv)
    station = EmbeddedStation(coalesce=options.coalesce, link_delay_s=options.link_delay_ms / 1000, hello=hello)
    stack.push_async_callback(station.close)
    await station.start(model=model, kernels=options.kernels, threads=threads)
    link = StationLink(0, "memory:solo", station, name=SOLO, on_message=network.received, on_lost=network.lost)
    return Stations(
        [link], lambda links: make_plan(SOLO, links[0].hello.num_layers), options.name or SOLO, usable_cores()
    )


def network_dial(options: EngineOptions, token: str, ssl: ssl_module.SSLContext | None = None) -> Dial:
    """Dials stations over sockets with the fleet's secret."""

    async def dial(url: str, *, on_message: OnMessage, on_close: OnClose) -> Link:
        return await connect(
            url,
            hello=host_hello(options.kv),
            token=token,
            transport=options.transport,
            on_message=on_message,
            on_close=on_close,
            ssl=ssl if url.startswith("wss://") else None,
            link_delay_s=options.link_delay_ms / 1000,
            coalesce=options.coalesce,
        )

    return dial


def host_hello(kv: KvOptions) -> Hello:
    """What a host says of itself: any model, any numerics, and how its sessions keep their KV."""
    return Hello(PROTOCOL_VERSION, f"host-{os.getpid()}", "host", cache_options=kv.to_wire(), pid=os.getpid())


async def find_model(model: str) -> tuple[str, int]:
    """The model as stations take it, and its number of layers; a generated one is made when it is not there yet.

    Raises HostError with the words of the station package, which lists the models there are.
    """
    if model.startswith("synthetic:"):
        result = await run_verb("import", model)
        return str(result["name"]), int(result["num_layers"])
    result = await run_verb("card", model)
    return model, int(result["card"]["num_layers"])


async def run_verb(verb: str, *arguments: str, given: bytes = b"") -> dict[str, Any]:
    """Run a verb of `python -m stations` to its end, with `given` on its stdin; returns its result event.

    Raises HostError with its error.
    """
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-m", "stations", verb, *arguments)
    stdin = pipe if given else asyncio.subprocess.DEVNULL  # uvloop writes not even b"" to a child that has ended
    child = await asyncio.create_subprocess_exec(*command, stdin=stdin, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(VERB_TIMEOUT_S):
            out, err = await child.communicate(given or None)
    except BaseException as error:
        if child.returncode is None:
            child.kill()
        await child.wait()
        if isinstance(error, TimeoutError):
            raise HostError(f"python -m stations {verb} has not ended within {VERB_TIMEOUT_S:g} s") from None
        raise
    for line in reversed(out.splitlines()):
        event: dict[str, Any]
        try:
            event = msgspec.json.decode(line, type=dict)
        except msgspec.DecodeError:  # a library that prints
            continue
        if event.get("event") == "result":
            return event
        if event.get("event") == "error":
            raise HostError(str(event.get("message")))
    last = (err.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
    raise HostError(f"python -m stations {verb} ended with status {child.returncode}: {last}")


def given_or_fleet(name: str, given: Any, fleet: FleetState | None, default: Any) -> Any:
    """What the caller gave, else what the fleet was started with, else the default."""
    return given if given is not None else getattr(fleet, name, default)


def addresses(urls: str | Sequence[str] | FleetState) -> tuple[str, ...]:
    """Of stations, however they were given. FleetError naming those of a fleet that do not run."""
    if isinstance(urls, FleetState):
        return urls.urls
    return (urls,) if isinstance(urls, str) else tuple(urls)
