"""`bench decode`: prefill and decode rates of plans, kernels and routes on one model, runs in turn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from ..engine import Engine
from ..result import Result
from .measure import machine, spread

MODEL = "smollm2"
PROMPT_TOKENS = 256
NEW_TOKENS = 64


class Way(msgspec.Struct, frozen=True):
    """One way to run the model."""

    plan: str
    route: str = "chain"
    kernels: str = "fast"
    threads: int = 1

    @property
    def label(self) -> str:
        route = "" if self.plan == "solo" else f" {self.route}"
        return f"{self.plan}{route} {self.kernels} {self.threads} thread{'s' if self.threads > 1 else ''}"


DEFAULT_WAYS = (
    Way("solo"),
    Way("solo", kernels="reference"),
    Way("layers:2"),
    Way("trisplit"),
    Way("trisplit", route="relay"),
)


async def bench_decode(
    ways: Sequence[Way] = DEFAULT_WAYS,
    *,
    model: str = MODEL,
    transport: str = "auto",
    prompt_tokens: int = PROMPT_TOKENS,
    new_tokens: int = NEW_TOKENS,
    runs: int = 3,
) -> dict[str, Any]:
    """Tokens a second of every way: all engines stand side by side, each run visits each of them once, alone.

    The prompt is `prompt_tokens` ids, the same everywhere; the answer goes on past its end. The logits hash of each way
    is reported: ways whose cut is exact must agree.
    """
    results: list[list[Result]] = [[] for _ in ways]
    hashes: list[str | None] = []
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(_launch(way, model, transport)) for way in ways]
        prompt = prompt_ids(engines[0].card.vocab_size, prompt_tokens)
        for engine in engines:  # caches warm, links open; hashing would cost time in the measured runs
            warm = engine.generate(prompt, max_tokens=new_tokens, ignore_eos=True, logits_hash=True)
            hashes.append((await warm.collect()).logits_hash)
        for _ in range(runs):
            for engine, taken in zip(engines, results, strict=True):
                taken.append(await engine.generate(prompt, max_tokens=new_tokens, ignore_eos=True).collect())
    rows = [_row(way, taken, logits_hash) for way, taken, logits_hash in zip(ways, results, hashes, strict=True)]
    exact = {row["logits_hash"] for row in rows if row["exactness"]["cut"] == "exact"}
    return {
        "bench": "decode",
        "machine": machine(),
        "model": model,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "ways": rows,
        "exact_hashes_agree": len(exact) <= 1,
        **_solo_ratio(rows),
    }


def _launch(way: Way, model: str, transport: str) -> Any:
    return Engine.launch(
        model=model,
        plan=way.plan,
        route=way.route,
        kernels=way.kernels,
        threads=way.threads,
        transport="auto" if way.plan == "solo" else transport,
    )


def prompt_ids(vocab_size: int, count: int) -> tuple[int, ...]:
    """Ids spread over the vocabulary, the same for every way; no special tokens, which come first."""
    return tuple(64 + index * 7919 % (vocab_size - 64) for index in range(count))


def _row(way: Way, results: Sequence[Result], logits_hash: str | None) -> dict[str, Any]:
    last = results[-1]
    return {
        "way": way.label,
        "plan": way.plan,
        "route": last.route,
        "kernels": last.kernels,
        "threads": way.threads,
        "transport": last.transport,
        "decode_tok_s": spread([r.timings.decode_tok_s for r in results]),
        "prefill_tok_s": spread([r.timings.prefill_tok_s for r in results]),
        "ttft_s": spread([r.timings.ttft_s for r in results], 4),
        "hops_per_token": last.hops_per_token,
        "bytes_per_token": last.bytes_per_token,
        "exactness": msgspec.to_builtins(last.exactness),
        "logits_hash": logits_hash,
    }


def _solo_ratio(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How many times faster fast kernels decode than reference ones in solo, where both were measured."""
    rate = {r["kernels"]: r["decode_tok_s"]["median"] for r in rows if r["plan"] == "solo" and r["threads"] == 1}
    if not {"fast", "reference"} <= rate.keys():
        return {}
    return {"solo_fast_over_reference": round(rate["fast"] / rate["reference"], 2)}
