"""`bench pairz`: what early logits (Pair Z, Fano line 257) would gain as a drafter, beside prompt lookup.

Early logits after layer t of n name the next token after t/n of a pass; where they are right, with share α, the next
pass starts there. At best a token costs (1 − α) + α·t/n passes, whatever is computed beside. Prompt lookup on the same
texts is counted at N = 8: a pass for each run, as where rows beside others cost nothing. Both are bounds, of chains
whose time is hops. The drafter that does not beat lookup here stays off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from ..engine import Engine
from ..launch import run_verb
from ..speculate.lookup import Lookup
from .measure import machine
from .prompts import load_prompts

LOOKUP_ROWS = 8
MIN_ROWS = 512  # of all answers; over fewer, answers have hardly begun to repeat anything
MIN_ERRORS = 2.0  # standard errors that a lead must have

Answered = tuple[Sequence[int], Sequence[int]]  # token ids of a prompt and of its answer


async def bench_pairz(*, model: str, prompts: str = "chat", new_tokens: int = 100) -> dict[str, Any]:
    """Greedy answers to a prompt set, the agreement after each layer, and the best gain of either drafter."""
    texts = []
    async with Engine.launch(model=model) as engine:
        for prompt in load_prompts(prompts).texts:
            answer = await engine.generate(prompt, max_tokens=new_tokens).collect()
            texts.append((answer.prompt_ids, answer.token_ids))
    given = json.dumps([{"prompt": prompt, "answer": answer} for prompt, answer in texts]).encode()
    found = await run_verb("early", model, given=given)
    agreement: list[float] = found["agreement"]
    gains = tap_gains(agreement)
    best = max(range(len(gains)), key=gains.__getitem__)
    by_lookup = lookup_tokens_per_pass(texts, LOOKUP_ROWS)
    lead, lead_se = lead_over_lookup(found["agreed"], texts)
    return {
        "bench": "pairz",
        "machine": machine(),
        "model": model,
        "prompts": prompts,
        "rows": found["rows"],
        "agreement": [round(share, 4) for share in agreement],
        "gain": [round(gain, 4) for gain in gains],
        "best": {"layer": best, "agreement": round(agreement[best], 4), "gain": round(gains[best], 4)},
        "lookup_tokens_per_pass": round(by_lookup, 4),
        "lead": round(lead, 4),
        "lead_se": round(lead_se, 4),
        "beats_lookup": verdict(lead, lead_se, found["rows"]),
    }


def lead_over_lookup(agreed: Sequence[Sequence[int]], texts: Sequence[Answered]) -> tuple[float, float]:
    """The best tap's gain minus lookup's tokens a pass, and its standard error: a jackknife over the texts."""

    def lead(kept: Sequence[int]) -> float:
        rows = sum(len(texts[i][1]) for i in kept)
        shares = [sum(of_layer) / rows for of_layer in zip(*(agreed[i] for i in kept), strict=True)]
        return max(tap_gains(shares)) - lookup_tokens_per_pass([texts[i] for i in kept], LOOKUP_ROWS)

    n = len(texts)
    whole = lead(range(n))
    if n < 2:
        return whole, math.inf
    leads = [lead([i for i in range(n) if i != left_out]) for left_out in range(n)]
    mean = sum(leads) / n
    return whole, math.sqrt((n - 1) / n * sum((one - mean) ** 2 for one in leads))


def verdict(lead: float, lead_se: float, rows: int) -> bool | None:
    """Do early logits beat lookup? None where too few rows tell."""
    if rows < MIN_ROWS or abs(lead) <= MIN_ERRORS * lead_se:
        return None
    return lead > 0


def tap_gains(agreement: Sequence[float]) -> list[float]:
    """How many times faster decoding can be at most with the tap after each layer but the last."""
    n = len(agreement)
    return [1.0 / (1.0 - share + share * (layer + 1) / n) for layer, share in enumerate(agreement[:-1])]


def lookup_tokens_per_pass(texts: Sequence[Answered], longest: int) -> float:
    """Tokens a pass when every match is verified, `longest` guesses at a time: pure counting, nothing runs."""
    tokens = passes = 0
    for prompt, answer in texts:
        lookup = Lookup(prompt)
        at = 0
        lookup.append(answer[at])
        while at + 1 < len(answer):
            run = lookup.find([], longest).tokens
            count = 1
            while count <= len(run) and at + count + 1 < len(answer) and run[count - 1] == answer[at + count]:
                count += 1
            for token in answer[at + 1 : at + 1 + count]:
                lookup.append(token)
            at += count
            tokens += count
            passes += 1
    return tokens / passes if passes else 0.0
