"""`bench trisplit`: one cell, which is one generation of one prompt in one way, taken apart into hops, layers, tokens.

Below 10 ms of link delay the generation is timed first and traced in a second run: recording an event costs a
microsecond or two, and stations that record take their general path, which costs some thirty a hop more. Above, one
run is both.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import msgspec

from aeonflow.messages import Stats, StatsReply

from ..engine import Engine
from ..errors import HostError, UnsupportedOptionError
from ..links import LinkState, answers
from ..result import Result
from ..trace import Recording, Tracing
from .measure import machine
from .prompts import BenchPrompt
from .trisplit_netns import NetworkNamespaces, launched_in_namespaces
from .trisplit_report import report_of

TRACE_APART_MS = 10.0  # below this delay the traced run is not the timed one
STATS_TIMEOUT_S = 10.0
IDLE_S = 1.0
WARM_TOKENS = 2  # of the run before, where one costs little
DRAFT_WARM_TOKENS = 15  # before a run with drafts: the switch takes twelve plain ones to learn what they cost

OnToken = Callable[[int], None]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One way to generate. `netns`: the delay is netem's, between network namespaces, instead of the links' own."""

    plan: str = "trisplit"
    route: str = "chain"
    pair_x: str = "off"
    pair_x_layers: str | None = None
    pair_x_seed: str | None = None
    speculate: str = "off"
    coalesce: bool = True
    link_delay_ms: float = 0.0
    new_tokens: int = 32
    prompts: str = "chat"
    kernels: str = "fast"
    threads: int = 1
    transport: str = "auto"
    netns: bool = False

    @property
    def way(self) -> str:
        """What sets it apart from others at the same delay: `trisplit chain, lookup, edit`."""
        parts = [f"{self.plan} {self.route}" if self.plan != "solo" else "solo"]
        if self.pair_x != "off":
            layers = f" {self.pair_x_layers}" if self.pair_x_layers else ""
            seed = f" of {self.pair_x_seed}" if self.pair_x_seed else ""
            parts.append(f"pair_x {self.pair_x}{layers}{seed}")
        if self.speculate != "off":
            parts.append(self.speculate)
        if not self.coalesce:
            parts.append("no coalescing")
        if self.prompts != "chat":
            parts.append(self.prompts)
        return ", ".join(parts)


class Counted(msgspec.Struct, frozen=True):
    """What all links, the host's and the stations', have counted at `at_s`. Frames and messages of every kind."""

    at_s: float
    frames: float
    messages: float
    num_bytes: float
    delayed: float
    delay_s: float

    def since(self, before: Counted) -> Counted:
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(before)
        return Counted(*(a - b for a, b in zip(mine, theirs, strict=True)))

    def without(self, idle: Counted) -> Counted:
        """Less what links send in so long when nothing is generated: heartbeats."""
        share = self.at_s / idle.at_s
        return msgspec.structs.replace(
            self,
            frames=max(0.0, self.frames - share * idle.frames),
            messages=max(0.0, self.messages - share * idle.messages),
            num_bytes=max(0.0, self.num_bytes - share * idle.num_bytes),
        )


class Run(msgspec.Struct, frozen=True):
    """One generation: its result, when each token came, what the links counted until the first and from it on."""

    result: Result
    token_times_s: tuple[float, ...]
    prefill: Counted
    decode: Counted


class Measured(msgspec.Struct, frozen=True):
    """A cell that was run: the timed generation, the recording of it (or of a second one), the JSON object."""

    cell: Cell
    recording: Recording
    prompt_tokens: int
    report: dict[str, Any]


def is_traced_apart(cell: Cell) -> bool:
    """Is the traced run another one than the timed run?"""
    return cell.link_delay_ms < TRACE_APART_MS


def warm_tokens(cell: Cell) -> int:
    """Tokens of the run before the timed one; 0: no such run."""
    if cell.pair_x == "draft":
        return DRAFT_WARM_TOKENS
    return WARM_TOKENS if is_traced_apart(cell) else 0


async def measure_cell(
    cell: Cell, *, model: str, prompt: BenchPrompt, limit_s: float, on_token: OnToken = lambda count: None
) -> Measured:
    """Launch the stations, generate past the end of the answer, take the trace apart.

    `limit_s`: for all of it; HostError says how far it came when that is over. `on_token(n)` after each token.
    """
    progress = 0

    def came(count: int) -> None:
        nonlocal progress
        progress = count
        on_token(count)

    try:
        async with asyncio.timeout(limit_s):
            return await _measure(cell, model, prompt, came)
    except TimeoutError:
        raise HostError(
            f"{cell.way} at {cell.link_delay_ms:g} ms has not ended within {limit_s:.0f} s: "
            f"{progress} of {cell.new_tokens} tokens came"
        ) from None


async def _measure(cell: Cell, model: str, prompt: BenchPrompt, on_token: OnToken) -> Measured:
    with NetworkNamespaces(cell.link_delay_ms) if cell.netns else nullcontext() as namespaces:
        async with launched(cell, model, namespaces) as engine:
            apart = is_traced_apart(cell)
            idle = await _idle(engine)
            if warm := warm_tokens(cell):
                await _generate(engine, prompt.text, warm, idle)
            tracing = Tracing(engine.network, time.perf_counter)
            if apart:
                timed = await _generate(engine, prompt.text, cell.new_tokens, idle, on_token)
                await tracing.start()
                await _generate(engine, prompt.text, cell.new_tokens, idle)
            else:
                await tracing.start()
                timed = await _generate(engine, prompt.text, cell.new_tokens, idle, on_token)
            recording = await tracing.collect()
            crossing_s = _crossing(recording) if cell.netns else None
            card = engine.card
    shared: dict[str, Any] = {
        "bench": "trisplit",
        "machine": machine(),
        "model": card.name,
        "prompt": prompt.id,
        "way": cell.way,
        **msgspec.structs.asdict(cell),
        "traced_apart": apart,
    }
    report = report_of(timed, recording, num_layers=card.num_layers, crossing_s=crossing_s)
    return Measured(cell, recording, len(timed.result.prompt_ids), shared | report)


@asynccontextmanager
async def launched(cell: Cell, model: str, namespaces: NetworkNamespaces | None) -> AsyncIterator[Engine]:
    """An engine whose stations run as the cell says. UnsupportedOptionError for what the engine does not have."""
    options: dict[str, Any] = {"route": cell.route, "coalesce": cell.coalesce, "pair_x": cell.pair_x}
    options |= {"speculate": cell.speculate, "transport": cell.transport}
    options |= {name: value for name in ("pair_x_layers", "pair_x_seed") if (value := getattr(cell, name)) is not None}
    of_stations: dict[str, Any] = {"kernels": cell.kernels, "threads": cell.threads}
    if namespaces is None:
        launch = known_options(Engine.launch, options | of_stations | {"link_delay_ms": cell.link_delay_ms})
        async with Engine.launch(model=model, plan=cell.plan, **launch) as engine:
            yield engine
        return
    connect = known_options(Engine.connect, options)
    of_stations |= {"transport": cell.transport, "coalesce": cell.coalesce}
    async with (
        launched_in_namespaces(namespaces, model, cell.plan, of_stations) as fleet,
        Engine.connect(fleet.urls, token=fleet.token, **connect) as engine,
    ):
        yield engine


def known_options(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that the function does not have; UnsupportedOptionError for one that is not off."""
    known = inspect.signature(function).parameters
    for name, value in options.items():
        if name not in known and value not in ("off", None):
            raise UnsupportedOptionError(f"{name} {value!r}: {function.__qualname__} does not take it")
    return {name: value for name, value in options.items() if name in known}


async def _idle(engine: Engine) -> Counted:
    """What links count in a while without any generation."""
    before = await count(engine)
    await asyncio.sleep(IDLE_S)
    return (await count(engine)).since(before)


async def _generate(
    engine: Engine, text: str, new_tokens: int, idle: Counted, on_token: OnToken = lambda count: None
) -> Run:
    before = await count(engine)
    generation = engine.generate(text, max_tokens=new_tokens, ignore_eos=True)
    times: list[float] = []
    async with asyncio.TaskGroup() as group:
        counting: asyncio.Task[Counted] | None = None
        async for chunk in generation:
            times += [engine.clock()] * len(chunk.token_ids)
            if counting is None and times:  # beside the next token: its answers are a message a station
                counting = group.create_task(count(engine))
            on_token(len(times))
    after = await count(engine)
    first = counting.result() if counting is not None else after
    return Run(
        generation.result,
        tuple(times),
        first.since(before).without(idle),
        after.since(first).without(idle),
    )


async def count(engine: Engine) -> Counted:
    """The counters of all links as they are now."""
    stations = engine.network.stations
    told = [reply.values for reply in (await answers(stations, Stats(), StatsReply, STATS_TIMEOUT_S)).values()]
    stats = [station.link.stats for station in stations if station.state is LinkState.READY]
    return Counted(
        engine.clock(),
        sum(s.frames_sent for s in stats) + sum(t.get("frames_sent", 0) for t in told),
        sum(s.messages_sent for s in stats) + sum(t.get("ws_messages_sent", 0) for t in told),
        sum(s.bytes_sent for s in stats) + sum(t.get("bytes_sent", 0) for t in told),
        sum(s.delayed_messages for s in stats) + sum(t.get("delayed_messages", 0) for t in told),
        sum(s.delay_obtained_s for s in stats) + sum(t.get("delay_obtained_s", 0.0) for t in told),
    )


def _crossing(recording: Recording) -> float:
    """One crossing between host and station: half the shortest of nine round trips, mean of the stations."""
    errors = [track.error_s for track in recording.stations if not track.problem]
    return sum(errors) / max(1, len(errors))
