"""From stations to an engine that runs: joined, probed, and closed at the end whatever happens."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .launch import EngineOptions, Stations
from .network import Network
from .overlay_proof import proofs_folder
from .setting import describe
from .speculate.drafters import running_drafters
from .status import measured_pace
from .trace import traced_to

if TYPE_CHECKING:
    from .engine import Engine

IDLE_S = 3600.0  # after which stations forget a session that nobody used


def make_network(options: EngineOptions) -> Network:
    """A network that has not started, as the options of `launch` or `connect` want it."""
    return Network(
        is_relay=options.route == "relay",
        deadline_s=options.deadline_s,
        idle_s=IDLE_S,
        kv=options.kv,
        pair_x=options.pair_x,
        prefill_chunk=options.prefill_chunk,
        check=lambda net: describe(options, net, proofs_folder(os.environ), refuse_bounded=options.exact),
        clock=time.perf_counter,
        rng=random.Random(secrets.randbits(64)),
    )


@asynccontextmanager
async def running(
    cls: type[Engine],
    network: Network,
    stations: Stations,
    options: EngineOptions,
    trace: str | Path | None,
    stack: AsyncExitStack,
) -> AsyncIterator[Engine]:
    """Join the stations, probe the chain, and close the network at the end whatever happens. `stack`: what else the
    engine needs as long as it lives."""
    try:
        await network.start(stations.links, stations.make_plan)
        pace = await measured_pace(network, stations.cores)
        speculating = running_drafters(options.speculate, network, pace, cls.launch, time.perf_counter)
        drafters = await stack.enter_async_context(speculating)
        engine = cls(
            network,
            name=options.name or stations.name,
            prefill_chunk=options.prefill_chunk,
            rejoin_s=options.rejoin_s,
            pace=pace,
            drafters=drafters,
            describe_setting=lambda net: describe(options, net, proofs_folder(os.environ)),
            clock=time.perf_counter,
        )
        async with traced_to(trace, network, engine.clock, lambda: _about(engine)):
            yield engine
    finally:
        await asyncio.shield(network.close())


def _about(engine: Engine) -> dict[str, Any]:
    """What a trace says of the engine it was taken of."""
    setting = engine.setting
    return {
        "model": engine.card.name,
        "plan": setting.plan,
        "route": setting.route,
        "kernels": setting.kernels,
        "transport": setting.transport,
    }
