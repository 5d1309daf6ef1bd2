"""Speculating beside plain decoding, answer by answer: three engines, two of them plain; tokens that must agree.

The second plain answer to each prompt is there to tell noise: how far two answers differ that do the same. `blind`
makes every guess of the pipelined draft wrong and drafts all the while: what drafting costs where it gains nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from ..engine import Engine
from ..errors import HostError
from ..result import Result
from ..sequence import DraftAnswer
from ..speculate.switch import DraftSwitch
from .measure import machine
from .rows import Computed, computed
from .speculate_report import Asked, Decoded, Turn, blind_bound, is_at_least, report

WARM_TOKENS = 15  # the first passes measure what a row costs, and the switch what a plain token does
MIN_TOKENS = 4  # of an answer whose time is looked at

Progress = Callable[[int, int], None]


class Timed(NamedTuple):
    """One answer; processor seconds of this process while it was decoded: in solo all that it cost."""

    result: Result
    cpu_s: float

    @property
    def decoded(self) -> Decoded:
        count = len(self.result.token_ids) - 1
        return Decoded(count, count / self.result.timings.decode_tok_s, self.cpu_s, self.result.speculation)


class AlwaysDrafting(DraftSwitch):
    """A switch that is stuck."""

    @property
    def wants_drafts(self) -> bool:
        return True


async def bench_speculate(
    *,
    model: str,
    plan: str,
    speculate: str,
    prompts: Sequence[Asked],
    pair_x: str = "off",
    link_delay_ms: float = 0.0,
    threads: int | None = None,
    new_tokens: int = 72,
    runs: int = 1,
    blind: bool = False,
    at_once: bool = False,
    minutes: float | None = None,
    progress: Progress = lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Ratios of decode times plain / speculating: of all answers, by prompt set, the worst, and their noise.

    The three answers to a prompt come in turn, plain before and after; with `at_once` side by side, for links so slow
    that the machine waits most of the time. After `minutes` no prompt is begun that would not end in time; what is left
    out is counted. `progress`: prompts so far, of how many.
    """
    common: dict[str, Any] = {"model": model, "plan": plan, "link_delay_ms": link_delay_ms, "threads": threads}
    no_options: dict[str, Any] = {}
    began_s = clock()
    turns: list[Turn] = []
    queue = [asked for _ in range(runs) for asked in prompts]
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(Engine.launch(**common, **options))
            for options in (no_options, {"speculate": speculate, "pair_x": pair_x}, no_options)
        ]
        if blind:
            _blind(engines[1])
        before = await computed(engines[0])
        for engine in engines:
            await _answer(engine, prompts[0].text, WARM_TOKENS)
        plain_row = _since(await computed(engines[0]), before)
        longest_s = 0.0
        for done, asked in enumerate(queue):
            progress(done, len(queue))
            turn_began_s = clock()
            if minutes is not None and turn_began_s + longest_s - began_s > 60 * minutes:
                break
            if (turn := await _turn(engines, asked, new_tokens, at_once)) is not None:
                turns.append(turn)
            longest_s = max(longest_s, clock() - turn_began_s)
        progress(len(queue), len(queue))
    if not turns:
        raise HostError(f"no answer of {len(queue)} could be timed within {minutes or math.inf:g} minutes")
    found = {
        "bench": "speculate",
        "machine": machine(),
        **common,
        "speculate": speculate,
        "pair_x": pair_x,
        "at_once": at_once,
        "new_tokens": new_tokens,
        "took_s": round(clock() - began_s, 1),
        "left_out": len(queue) - len(turns),
        **report(turns, with_cpu=plan == "solo"),
    }
    if blind and link_delay_ms:
        layer_s = plain_row.seconds / plain_row.rows / engines[0].card.num_layers
        bound = blind_bound(layer_s, link_delay_ms / 1e3)
        found.update(bound=round(bound, 4), holds=is_at_least(bound, turns))
    return found


async def _turn(engines: Sequence[Engine], asked: Asked, new_tokens: int, at_once: bool) -> Turn | None:
    """The answers of all sides to a prompt; None where they are too short to be timed."""
    if at_once:
        answers = await asyncio.gather(*(_answer(engine, asked.text, new_tokens) for engine in engines))
    else:
        answers = [await _answer(engine, asked.text, new_tokens) for engine in engines]
    plain = answers[0].result
    for other in answers[1:]:
        if other.result.token_ids != plain.token_ids:
            raise AssertionError(f"other tokens than plain decoding: {other.result.text!r}, {plain.text!r}")
    if len(plain.token_ids) < MIN_TOKENS:
        return None
    return Turn(asked, *(answer.decoded for answer in answers))


async def _answer(engine: Engine, text: str, new_tokens: int) -> Timed:
    generation = engine.generate(text, max_tokens=new_tokens, ignore_eos=False)
    began_s = 0.0
    async for _ in generation:
        began_s = began_s or time.process_time()
    return Timed(generation.result, time.process_time() - began_s)


def _since(now: Computed, before: Computed) -> Computed:
    return Computed(now.rows - before.rows, now.seconds - before.seconds)


def _blind(engine: Engine) -> None:
    """Every draft guesses the least likely of its candidates."""
    engine.drafters.drafts = AlwaysDrafting(predicted_gain=1.0)
    start = engine.start

    def started(*arguments: Any) -> Any:
        decoder = start(*arguments)
        decoder.speculation.use_pick(_least_likely)
        return decoder

    engine.start = started  # type: ignore[assignment,method-assign]


def _least_likely(draft: DraftAnswer) -> int:
    return int(draft.ids[-1])
