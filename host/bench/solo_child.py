"""aeonflow in solo as a child that answers JSON lines, as the peer's child does: what `benches/peers.py` compares.

The first line of stdin is the setting {model, threads, kernels, kv}; every further line {prompt, new_tokens} is one
greedy answer, told as {prefill_s, decode_s, …_cpu_s, token_ids, peak_rss_bytes}. Decode counts from the first token
chosen to the last.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from aeonflow import new_event_loop

from ..engine import Engine
from .measure import peak_rss_bytes


async def _main() -> None:
    setting = json.loads(sys.stdin.readline())
    # Lines are read in the loop's own thread: nothing else runs here between two answers.
    async with Engine.launch(
        model=setting["model"],
        plan="solo",
        threads=setting["threads"],
        kernels=setting["kernels"],
        kv=setting["kv"],
    ) as engine:
        print(json.dumps({"version": "aeonflow", "vocab_size": engine.card.vocab_size}), flush=True)
        for line in sys.stdin:
            print(json.dumps(await _answer(engine, **json.loads(line))), flush=True)


async def _answer(engine: Engine, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    began_cpu_s = first_cpu_s = time.process_time()
    generation = engine.generate(tuple(prompt), max_tokens=new_tokens, ignore_eos=True)
    is_first = True
    async for _ in generation:
        if is_first:
            first_cpu_s, is_first = time.process_time(), False
    ended_cpu_s = time.process_time()
    result = generation.result
    timings = result.timings
    return {
        "prefill_s": len(prompt) / timings.prefill_tok_s,
        "decode_s": (new_tokens - 1) / timings.decode_tok_s,
        "prefill_cpu_s": first_cpu_s - began_cpu_s,
        "decode_cpu_s": ended_cpu_s - first_cpu_s,
        "token_ids": list(result.token_ids),
        "peak_rss_bytes": peak_rss_bytes(),
    }


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_main())
