"""aeonflow in solo as a child that answers JSON lines, as the peer's child does: what `benches/peers.py` compares.

The first line of stdin is the setting {model, threads, kernels, kv}; every further line {prompt, new_tokens} is one
greedy answer, told as {prefill_s, decode_s, …_cpu_s, token_ids, peak_rss_bytes}. Decode counts from the first token
chosen to the last. {prompt, new_tokens, sessions} is so many answers at once, told as {total_tok_s}; {hashed: [prompt,
new_tokens]} an answer told as {logits_hash}; {rows, file} writes the logits of rows fed as they stand, f32, with numpy.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy as np

from aeonflow import new_event_loop
from aeonflow.tensors import Want

from ..engine import Engine
from ..evaluate.track import Pace, open_track
from .measure import peak_rss_bytes
from .sessions import total_rate

LOGITS_ROWS = 32  # of a pass: those of all go in one message


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
            print(json.dumps(await _reply(engine, json.loads(line))), flush=True)


async def _reply(engine: Engine, question: dict[str, Any]) -> dict[str, Any]:
    if "rows" in question:
        return await _logits(engine, question["rows"], question["file"])
    if "hashed" in question:
        prompt, new_tokens = question["hashed"]
        generation = engine.generate(tuple(prompt), max_tokens=new_tokens, ignore_eos=True, logits_hash=True)
        return {"logits_hash": (await generation.collect()).logits_hash}
    if "sessions" in question:
        return {"total_tok_s": await total_rate(engine, **question)}
    return await _answer(engine, **question)


async def _logits(engine: Engine, rows: list[int], file: str) -> dict[str, Any]:
    track = await open_track(engine.network, len(rows), engine.network.kv, Pace())
    parts = [await track.feed(rows[at : at + LOGITS_ROWS], Want.ALL) for at in range(0, len(rows), LOGITS_ROWS)]
    np.save(file, np.concatenate([part for part in parts if part is not None]))
    return {"kv_bytes": await track.close()}


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
