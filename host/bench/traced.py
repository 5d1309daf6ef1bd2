"""A traced run of an engine, broken down: which role, the wire or the host a decoded token waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from ..engine import Engine
from ..trace import Breakdown, Tracing, break_down


async def traced_breakdown(engine: Engine, prompt: Sequence[int], new_tokens: int, sessions: int) -> Breakdown:
    """Where the decoded tokens of `sessions` answers at once spend their time. Prefill is left out."""
    tracing = Tracing(engine.network, time.perf_counter)
    await tracing.start()
    generations = [engine.generate(tuple(prompt), max_tokens=new_tokens, ignore_eos=True) for _ in range(sessions)]
    await asyncio.gather(*(generation.collect() for generation in generations))
    recording = await tracing.collect()
    return break_down(recording, lambda event: event.first >= len(prompt))
