"""`bench hop --link-delay-ms D`: a token's time beside what its hops and computes alone would take.

floor = hops × the delay that links obtained + the computes; goal: a token takes at most 1.05 of that, on both routes.
"""

from __future__ import annotations

from typing import Any

from ..engine import Engine
from .rows import computed
from .trisplit import count

ROUTES = ("chain", "relay")
PROMPT = (8,)
TOKENS = 12


async def bench_delayed(
    *, link_delay_ms: float, model: str, plan: str, kernels: str, transport: str, tokens: int = TOKENS
) -> list[dict[str, Any]]:
    """One object a route: `token_ms`, `hops`, `obtained_ms` (mean of all messages of the answer), `compute_ms` (of a
    token, all stations), `floor_ms`, `ratio` = token / floor."""
    return [await _one_route(route, link_delay_ms, model, plan, kernels, transport, tokens) for route in ROUTES]


async def _one_route(
    route: str, link_delay_ms: float, model: str, plan: str, kernels: str, transport: str, tokens: int
) -> dict[str, Any]:
    async with Engine.launch(
        model=model,
        plan=plan,
        route=route,
        kernels=kernels,
        transport=transport,
        threads=1,
        link_delay_ms=link_delay_ms,
    ) as engine:
        await engine.generate(PROMPT, max_tokens=2, ignore_eos=True).collect()
        before, links_before = await computed(engine), await count(engine)
        result = await engine.generate(PROMPT, max_tokens=tokens, ignore_eos=True).collect()
        after, links_after = await computed(engine), await count(engine)
    delayed = links_after.since(links_before)
    obtained_s = delayed.delay_s / delayed.delayed
    compute_s = (after.seconds - before.seconds) / (after.rows - before.rows)
    token_s = 1 / result.timings.decode_tok_s
    floor_s = result.hops_per_token * obtained_s + compute_s
    return {
        "route": route,
        "transport": transport,
        "asked_ms": link_delay_ms,
        "obtained_ms": round(1000 * obtained_s, 3),
        "hops": result.hops_per_token,
        "compute_ms": round(1000 * compute_s, 3),
        "token_ms": round(1000 * token_s, 3),
        "floor_ms": round(1000 * floor_s, 3),
        "ratio": round(token_s / floor_s, 4),
    }
