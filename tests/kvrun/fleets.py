"""Stations of any kernel set on real sockets in the test's own process, and whole generations on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from aeonflow import Link, Message, connect, serve, station_key
from aeonflow.kv_options import KvOptions, is_barrier
from host import Engine
from host.plan import StationSpec, make_plan
from stations.core.kv_layout import KvLayout
from stations.core.station import Station
from stations.kernels import Backend, Span, make_backend
from stations.kernels.weights import learned_sinks
from stations.models.documents import Bundle, encode_bundle
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles, parse_roles
from stations.server.assemble import make_station
from stations.server.shell import Shell

TOKEN = "a-secret-for-the-tests-of-kv-options"
KV_BUDGET_BYTES = 256 << 20
PROMPT = [(37 * i + 11) % 512 for i in range(150)]  # past the first barriers of every coded mode
TOKENS = 40


class Outcome(NamedTuple):
    tokens: tuple[int, ...]
    logits_hash: str


@asynccontextmanager
async def stations(
    plan: str, model: ModelFolder, *, kernels: str = "fast", threads: int = 1, kv_budget_bytes: int = KV_BUDGET_BYTES
) -> AsyncIterator[dict[str, tuple[str, Station]]]:
    """The stations of a plan by name: address and core."""
    async with AsyncExitStack() as stack:
        running = {}
        for spec in make_plan(plan, model.card.num_layers).stations:
            url, core, close = await _start(spec, model, kernels, threads, kv_budget_bytes)
            stack.push_async_callback(close)
            running[spec.name] = (url, core)
        yield running


async def _start(spec: StationSpec, model: ModelFolder, kernels: str, threads: int, kv_budget_bytes: int) -> Any:
    spans = parse_roles(spec.roles_text, model.card.num_layers)
    core, hello = make_station(
        spec.name, model, spans, kernels=kernels, threads=threads, kv_budget_bytes=kv_budget_bytes,
        now=time.monotonic(), pid=0, software="",
    )  # fmt: skip
    bundle = encode_bundle(Bundle(model.card, model.tokenizer_json, model.manifest))

    async def dial(url: str, on_message: Any, on_close: Any) -> Link:
        return await connect(
            url, hello=hello, token=station_key(TOKEN), transport="websockets", on_message=on_message,
            on_close=on_close,
        )  # fmt: skip

    def answer_weights(message: Message, max_bytes: int) -> bytes:
        return bundle

    shell = Shell(core, dial, answer_weights=answer_weights)
    server = await serve("127.0.0.1", 0, hello=hello, token=TOKEN, on_link=shell.add_link, transport="websockets")

    async def close() -> None:
        await server.close()
        await shell.close()

    return server.url, core, close


@asynccontextmanager
async def engine_on(
    plan: str, model: ModelFolder, *, route: str = "chain", kernels: str = "fast", threads: int = 1, **kv: Any
) -> AsyncIterator[Engine]:
    async with (
        stations(plan, model, kernels=kernels, threads=threads) as running,
        connected(running, route=route, **kv) as engine,
    ):
        yield engine


@asynccontextmanager
async def connected(
    running: dict[str, tuple[str, Station]], *, route: str = "chain", **kv: Any
) -> AsyncIterator[Engine]:
    urls = [url for url, _ in running.values()]
    async with Engine.connect(urls, token=TOKEN, route=route, transport="websockets", **kv) as engine:
        yield engine


async def generated(
    engine: Engine, prompt: list[int] = PROMPT, tokens: int = TOKENS, chunk: int | None = None
) -> Outcome:
    """A whole greedy generation."""
    generation = engine.generate(prompt, max_tokens=tokens, ignore_eos=True, logits_hash=True, prefill_chunk=chunk)
    result = await generation.collect()
    assert result.logits_hash is not None
    return Outcome(result.token_ids, result.logits_hash)


class Plain:
    """The oracle: kernels called row by row over the whole model, no station and no wire."""

    def __init__(self, model: ModelFolder, kernels: str = "fast") -> None:
        self._card = model.card
        self._sinks = learned_sinks(model, all_roles(model.card.num_layers))
        self._backend: Backend = make_backend(kernels, model, all_roles(model.card.num_layers))

    def generated(self, options: KvOptions, prompt: list[int] = PROMPT, tokens: int = TOKENS) -> Outcome:
        layers = range(self._card.num_layers)
        layout = KvLayout(self._card, options, self._sinks)
        caches = [layout.new_cache(layer, len(prompt) + tokens) for layer in layers]
        barriers = layout.barriers(layers)
        ids, digest = list(prompt), blake3()
        for at in range(len(prompt) + tokens - 1):
            if is_barrier(barriers, at):
                for cache in caches:
                    layout.change_form(cache, at)
            x = self._backend.embed(np.array(ids[at : at + 1], np.uint32), 0, 1)
            x = self._backend.block(0, len(layers) - 1, x, [[Span(cache, at, 1)] for cache in caches])
            if at >= len(prompt) - 1:
                row = self._backend.head(x, 0, 1)[0]
                digest.update(np.ascontiguousarray(row, "<f4").tobytes())
                ids.append(int(row.argmax()))
        return Outcome(tuple(ids[len(prompt) :]), digest.hexdigest())


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)
