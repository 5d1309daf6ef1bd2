"""`bench decode`: prefill and decode rates of plans, kernels and routes on one model, runs in turn; where time goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from ..engine import Engine
from ..result import Result
from ..trace import Breakdown
from .measure import machine, spread
from .sessions import total_rate
from .traced import traced_breakdown

MODEL = "smollm2"
PROMPT_TOKENS = 256
NEW_TOKENS = 64


class Way(msgspec.Struct, frozen=True):
    """One way to run the model."""

    plan: str
    route: str = "chain"
    kernels: str = "fast"
    threads: int = 1
    kv: str = "f32"
    speculate: str = "off"

    @property
    def label(self) -> str:
        route = "" if self.plan == "solo" else f" {self.route}"
        kv = "" if self.kv == "f32" else f" kv {self.kv}"
        guessing = "" if self.speculate == "off" else f" speculate {self.speculate}"
        return f"{self.plan}{route} {self.kernels} {self.threads} thread{'s' if self.threads > 1 else ''}{kv}{guessing}"


DEFAULT_WAYS = (
    Way("solo"),
    Way("solo", kernels="reference"),
    Way("layers:2"),
    Way("trisplit"),
    Way("trisplit", route="relay"),
)


class Taken(msgspec.Struct):
    """What was measured of one way: single answers, totals of several sessions at once, the traced run."""

    answers: list[Result] = []
    totals: list[float] = []
    logits_hash: str | None = None
    breakdown: Breakdown | None = None


async def bench_decode(
    ways: Sequence[Way] = DEFAULT_WAYS,
    *,
    model: str = MODEL,
    transport: str = "auto",
    prompt_tokens: int = PROMPT_TOKENS,
    new_tokens: int = NEW_TOKENS,
    sessions: int = 1,
    runs: int = 3,
    progress: Callable[[int], object] = lambda visits: None,
) -> dict[str, Any]:
    """Tokens a second of every way: all engines stand side by side, each run visits each of them once, alone.

    The prompt is `prompt_tokens` ids, the same everywhere; the answer goes on past its end. With `sessions` above 1
    each visit also runs so many answers at once. One more run of each way is traced and broken down. The logits hash of
    each way is reported: ways whose cut is exact must agree. A single way's figures stand at the top of the object.
    `progress` is told after each visit how many are over, of `num_visits`.
    """
    visits = itertools.count(1)
    taken = [Taken() for _ in ways]
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(_launch(way, model, transport)) for way in ways]
        prompt = prompt_ids(engines[0].card.vocab_size, prompt_tokens)
        for engine, own in zip(engines, taken, strict=True):  # caches warm, links open; hashing would cost time below
            warm = engine.generate(prompt, max_tokens=new_tokens, ignore_eos=True, logits_hash=True)
            own.logits_hash = (await warm.collect()).logits_hash
            progress(next(visits))
        for _ in range(runs):
            for engine, own in zip(engines, taken, strict=True):
                own.answers.append(await engine.generate(prompt, max_tokens=new_tokens, ignore_eos=True).collect())
                if sessions > 1:
                    own.totals.append(await total_rate(engine, prompt, new_tokens, sessions))
                progress(next(visits))
        for engine, own in zip(engines, taken, strict=True):
            own.breakdown = await traced_breakdown(engine, prompt, new_tokens, sessions)
            progress(next(visits))
    rows = [_row(way, own, sessions) for way, own in zip(ways, taken, strict=True)]
    exact = {row["logits_hash"] for row in rows if row["exactness"]["cut"] == "exact"}
    shared = {
        "bench": "decode",
        "machine": machine(),
        "model": model,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "sessions": sessions,
    }
    if len(rows) == 1:
        return {**shared, **rows[0]}
    return {**shared, "ways": rows, "exact_hashes_agree": len(exact) <= 1, **_solo_ratio(rows)}


def num_visits(num_ways: int, runs: int) -> int:
    """Visits of engines in all: each is warmed, run so often, and traced."""
    return num_ways * (1 + runs + 1)


def prompt_ids(vocab_size: int, count: int, start: int = 0) -> tuple[int, ...]:
    """Ids spread over the vocabulary, the same for every way; no special tokens, which come first."""
    return tuple(64 + index * 7919 % (vocab_size - 64) for index in range(start, start + count))


def _launch(way: Way, model: str, transport: str) -> Any:
    return Engine.launch(
        model=model,
        plan=way.plan,
        route=way.route,
        kernels=way.kernels,
        threads=way.threads,
        kv=way.kv,
        speculate=way.speculate,
        transport="auto" if way.plan == "solo" else transport,
    )


def _row(way: Way, taken: Taken, sessions: int) -> dict[str, Any]:
    results, last, found = taken.answers, taken.answers[-1], taken.breakdown
    assert found is not None, "every way is traced"
    spreads = {
        "decode_tok_s": spread([r.timings.decode_tok_s for r in results]),
        "prefill_tok_s": spread([r.timings.prefill_tok_s for r in results]),
        "ttft_s": spread([r.timings.ttft_s for r in results], 4),
    }
    if taken.totals:
        spreads["total_tok_s"] = spread(taken.totals)
    profile = found.to_json()
    per_role, bottleneck = profile.pop("per_role"), profile.pop("bottleneck")
    row: dict[str, Any] = {
        "way": way.label,
        "plan": way.plan,
        "route": last.route,
        "kernels": last.kernels,
        "threads": way.threads,
        "kv": way.kv,
        "speculation": last.speculation,
        "transport": last.transport,
        **{name: values["median"] for name, values in spreads.items()},
        "spread": spreads,
        "hops": last.hops_per_token,
        "bytes_per_token": last.bytes_per_token,
        "per_role": per_role,
        "bottleneck": bottleneck,
        "bottleneck_text": in_words(found),
        "profile": profile,
        "exactness": msgspec.to_builtins(last.exactness),
        "logits_hash": taken.logits_hash,
    }
    if taken.totals:
        row["sessions_gain"] = round(row["total_tok_s"] / row["decode_tok_s"], 2)
    return row


def in_words(found: Breakdown) -> str:
    """The bottleneck as a sentence."""
    name = found.bottleneck
    share = f"{100 * found.shares[name]:.0f} % of a token's time"
    passes = max(1, found.passes)
    if name == "wire":
        a_token = found.messages / passes
        return f"messages: {share}, in {a_token:.0f} messages of {1e6 * found.wire_s / passes / a_token:.0f} µs each"
    if name == "host":
        return f"the host: {share}, {1e3 * found.host_s / passes:.2f} ms"
    role = found.per_role[name]
    waiting = f", {1e3 * role.queue_s / passes:.2f} ms waiting" if role.queue_s > 0.1 * role.pass_compute_s else ""
    return f"{name}: {share}, {1e3 * role.pass_compute_s / passes:.2f} ms in {role.calls / passes:.1f} calls{waiting}"


def _solo_ratio(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How many times faster fast kernels decode than reference ones in solo, where both were measured."""
    rate = {r["kernels"]: r["decode_tok_s"] for r in rows if r["plan"] == "solo" and r["threads"] == 1}
    if not {"fast", "reference"} <= rate.keys():
        return {}
    return {"solo_fast_over_reference": round(rate["fast"] / rate["reference"], 2)}
