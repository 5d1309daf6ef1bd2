"""Fleets of real station processes, reached through proxies that break."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from host import Engine
from host.fleet import Fleet, StationOptions
from host.generate import Generation
from host.plan import make_plan

from .byte_proxy import ByteProxy

WAIT_S = 30.0  # bound of every wait of these tests; none is expected to come near it
KERNELS = "fast"
LONG = {"max_tokens": 3000, "ignore_eos": True}


class Proxied(NamedTuple):
    """A running fleet, a proxy before each of its stations, and an engine that goes through them."""

    fleet: Fleet
    proxies: list[ByteProxy]
    engine: Engine


@asynccontextmanager
async def running_fleet(plan: str, model: Path, **options: Any) -> AsyncIterator[Fleet]:
    """Station processes of a plan over the tiny model, started by the shipped launcher."""
    made = make_plan(plan, 4)
    async with Fleet(made.stations, StationOptions(model=str(model), kernels=KERNELS, **options)) as fleet:
        yield fleet


@asynccontextmanager
async def proxied_fleet(plan: str, model: Path, **engine_options: Any) -> AsyncIterator[Proxied]:
    """Host to station and station to station, every connection goes through a proxy."""
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(running_fleet(plan, model))
        proxies = [await stack.enter_async_context(ByteProxy(url)) for url in fleet.urls]
        urls = [proxy.url for proxy in proxies]
        engine = await stack.enter_async_context(Engine.connect(urls, token=fleet.token, **engine_options))
        yield Proxied(fleet, proxies, engine)


async def under_way(engine: Engine, num_tokens: int = 5) -> Generation:
    """A long generation that has emitted some tokens."""
    generation = engine.generate("Hello", **LONG)
    seen = 0
    async for chunk in generation:
        seen += len(chunk.token_ids)
        if seen >= num_tokens:
            return generation
    raise AssertionError("the generation ended by itself")


async def short_answer(engine: Engine) -> tuple[int, ...]:
    return (await engine.generate("Hello", max_tokens=12, ignore_eos=True).collect()).token_ids


async def drained(generation: Generation) -> None:
    """Iterate to the end, whatever it is."""
    async for _ in generation:
        pass
