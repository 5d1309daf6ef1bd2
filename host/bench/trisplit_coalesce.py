"""What coalescing gives to real generations: fleets with it and without it side by side, runs in turn.

A frame of a chain goes to one station, and one session has one frame under way: there is nothing to put together but
in the prefill. Several sessions at once share links, and there frames of one turn of the loop meet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from ..engine import Engine
from .measure import machine, spread
from .prompts import BenchPrompt
from .sessions import total_rate
from .trisplit import Cell, count, launched

SESSIONS = (1, 8)
RUNS = 5


async def bench_coalesce(
    cell: Cell,
    *,
    model: str,
    prompt: BenchPrompt,
    limit_s: float,
    sessions: Sequence[int] = SESSIONS,
    runs: int = RUNS,
) -> dict[str, Any]:
    """Tokens a second and frames a message of both, for so many sessions at once; `gain` is on / off of the rates.

    TimeoutError after `limit_s`. Frames include prefills and heartbeats: both sides have the same.
    """
    async with asyncio.timeout(limit_s), AsyncExitStack() as stack:
        engines = {
            is_on: await stack.enter_async_context(launched(msgspec.structs.replace(cell, coalesce=is_on), model, None))
            for is_on in (False, True)
        }
        found = {str(number): await _compare(engines, prompt, cell.new_tokens, number, runs) for number in sessions}
        name = engines[True].card.name
    return {
        "bench": "coalesce",
        "machine": machine(),
        "model": name,
        "way": cell.way,
        "link_delay_ms": cell.link_delay_ms,
        "new_tokens": cell.new_tokens,
        "runs": runs,
        "sessions": found,
    }


async def _compare(
    engines: dict[bool, Engine], prompt: BenchPrompt, new_tokens: int, sessions: int, runs: int
) -> dict[str, Any]:
    rates: dict[bool, list[float]] = {is_on: [] for is_on in engines}
    frames = dict.fromkeys(engines, 0.0)
    messages = dict(frames)
    for run in range(runs):
        for is_on in (False, True) if run % 2 == 0 else (True, False):
            engine = engines[is_on]
            before = await count(engine)
            ids = engine.tokenize(prompt.text, raw=False)
            rates[is_on].append(await total_rate(engine, ids, new_tokens, sessions))
            counted = (await count(engine)).since(before)
            frames[is_on] += counted.frames
            messages[is_on] += counted.messages
    off, on = spread(rates[False]), spread(rates[True])
    return {
        "off_tok_s": off,
        "on_tok_s": on,
        "gain": round(on["median"] / off["median"], 3) if off["median"] else None,
        "off_frames_per_message": round(frames[False] / messages[False], 3),
        "on_frames_per_message": round(frames[True] / messages[True], 3),
    }
