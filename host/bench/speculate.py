"""Speculating beside plain decoding on one prompt set: two engines, answers in turn, tokens that must agree.

`blind` makes every guess of the pipelined draft wrong and drafts all the while: what drafting costs where it gains
nothing, on stations that have the time (the bound is 1 + S / (2 (3 L + S)) and 2 %, S the compute of a layer, L a hop).
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from ..engine import Engine
from ..result import Result
from ..sequence import DraftAnswer
from ..speculate.switch import DraftSwitch
from .measure import machine, spread
from .prompts import load_prompts


class Timed(NamedTuple):
    """One answer; processor seconds of this process while it was decoded: in solo all that it cost."""

    result: Result
    cpu_s: float

    @property
    def decode_s(self) -> float:
        return (len(self.result.token_ids) - 1) / self.result.timings.decode_tok_s


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
    pair_x: str = "off",
    link_delay_ms: float = 0.0,
    threads: int | None = None,
    prompts: str = "chat",
    count: int = 4,
    new_tokens: int = 64,
    runs: int = 1,
    blind: bool = False,
) -> dict[str, Any]:
    """Tokens a second with and without, their ratio answer by answer, and what was guessed."""
    texts = load_prompts(prompts).texts[:count]
    common: dict[str, Any] = {"model": model, "plan": plan, "link_delay_ms": link_delay_ms, "threads": threads}
    plain: list[Timed] = []
    guessing: list[Timed] = []
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(Engine.launch(**common)),
            await stack.enter_async_context(Engine.launch(**common, speculate=speculate, pair_x=pair_x)),
        ]
        if blind:
            _blind(engines[1])
        for engine in engines:  # the first passes measure what a row costs, and the switch what a plain token does
            await _answer(engine, texts[0], 15)
        for _ in range(runs):
            for text in texts:
                for engine, taken in zip(engines, (plain, guessing), strict=True):
                    taken.append(await _answer(engine, text, new_tokens))
    for one, other in zip(plain, guessing, strict=True):
        if one.result.token_ids != other.result.token_ids:
            raise AssertionError(f"other tokens than plain decoding: {other.result.text!r}, {one.result.text!r}")
    tokens = sum(len(one.result.token_ids) - 1 for one in plain)
    passes = sum(one.result.speculation["passes"] for one in guessing)
    found = {
        "bench": "speculate",
        "machine": machine(),
        **common,
        "speculate": speculate,
        "pair_x": pair_x,
        "prompts": prompts,
        "answers": len(plain),
        "tokens": tokens,
        "plain_tok_s": round(tokens / sum(one.decode_s for one in plain), 3),
        "tok_s": round(tokens / sum(one.decode_s for one in guessing), 3),
        "ratio": round(sum(one.decode_s for one in plain) / sum(one.decode_s for one in guessing), 4),
        "ratios": spread([a.decode_s / b.decode_s for a, b in zip(plain, guessing, strict=True)], 4),
        "tokens_per_pass": round(tokens / passes, 4),
        "drafted": sum(one.result.speculation["drafted"] for one in guessing),
        "accepted": sum(one.result.speculation["accepted"] for one in guessing),
        "last": guessing[-1].result.speculation,
    }
    if plan == "solo":
        found["cpu_ratio"] = round(sum(one.cpu_s for one in plain) / sum(one.cpu_s for one in guessing), 4)
    return found


async def _answer(engine: Engine, text: str, new_tokens: int) -> Timed:
    generation = engine.generate(text, max_tokens=new_tokens, ignore_eos=False)
    began_s = 0.0
    async for _ in generation:
        began_s = began_s or time.process_time()
    return Timed(generation.result, time.process_time() - began_s)


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
