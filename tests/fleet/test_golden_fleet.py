"""The promise, on the real model over real processes: the golden tokens on every plan, one hash for every cut."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from host import Engine

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
PROMPTS = GOLDEN["prompts"]
NUM_TOKENS = 64
PLANS = [("solo", "chain"), ("layers:2", "chain"), ("layers:2", "relay"), ("trisplit", "chain"), ("trisplit", "relay"),
         ("ffslice:2", "chain")]  # fmt: skip

pytestmark = pytest.mark.timeout(600)


async def golden_answer(engine: Engine, golden: dict[str, Any]) -> None:
    """Generate past the end token, and compare prompt ids and answer ids with the exact f32 ones."""
    options = {"max_tokens": NUM_TOKENS, "ignore_eos": True}
    result = await engine.generate(golden["prompt"], **options).collect()
    assert list(result.prompt_ids) == golden["prompt_ids"]
    assert list(result.token_ids) == golden["f32_ref"]["greedy_ids"]


async def test_a_trisplit_chain_of_four_processes_gives_the_golden_tokens(smollm2: Path) -> None:
    async with Engine.launch(model=str(smollm2), plan="trisplit") as engine:
        await golden_answer(engine, PROMPTS[0])
        assert engine.setting.exactness.cut == "exact"
        assert (await engine.status())["ready"]


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize(("plan", "route"), PLANS)
async def test_every_plan_gives_the_golden_tokens_with_both_kernel_sets(
    plan: str, route: str, kernels: str, smollm2: Path
) -> None:
    async with Engine.launch(model=str(smollm2), plan=plan, route=route, kernels=kernels) as engine:
        for golden in PROMPTS:
            await golden_answer(engine, golden)


PROMPT = PROMPTS[2]["prompt"]
HASHED = {"max_tokens": 24, "ignore_eos": True, "logits_hash": True}

CUTS: list[dict[str, Any]] = [
    {"plan": "solo", "threads": 1},
    {"plan": "solo", "threads": 2},
    {"plan": "layers:2"},
    {"plan": "layers:2", "threads": 2, "route": "relay"},
    {"plan": "trisplit"},
    {"plan": "trisplit", "route": "relay"},
    {"plan": "trisplit", "transport": "websockets"},
    {"plan": "trisplit", "coalesce": False},
    {"plan": "ffslice:2"},
    {"plan": "ffslice:4", "route": "relay"},
    {"plan": "ffslice:8+shards=2"},
    {"plan": "trisplit+shards=2"},
    {"plan": "trisplit+shards=8"},
    {"plan": "layers:3+head-shards=2+embed-shards=8", "route": "relay"},
]


@pytest.mark.slow
async def test_one_logits_hash_for_every_cut(smollm2: Path) -> None:
    hashes: dict[str, str | None] = {}
    for cut in CUTS:
        async with Engine.launch(model=str(smollm2), **cut) as engine:
            for chunk in (1, 7, 64, 4096):
                result = await engine.generate(PROMPT, prefill_chunk=chunk, **HASHED).collect()
                hashes[f"{cut} chunk {chunk}"] = result.logits_hash
            others = [engine.generate(golden["prompt"], max_tokens=24, ignore_eos=True) for golden in PROMPTS[:3]]
            company = [asyncio.create_task(other.collect()) for other in others]
            result = await engine.generate(PROMPT, **HASHED).collect()
            hashes[f"{cut} beside 3 others"] = result.logits_hash
            await asyncio.gather(*company)
    assert len(set(hashes.values())) == 1, hashes


@pytest.mark.slow
async def test_ninety_one_processes_are_up_answer_with_the_same_hash_and_go_down(smollm2: Path) -> None:
    async with Engine.launch(model=str(smollm2), plan="solo") as engine:
        expected = await engine.generate(PROMPT, **HASHED).collect()
    async with Engine.launch(model=str(smollm2), plan="trisplit:per-layer") as engine:
        status = await engine.status()
        assert len(status["stations"]) == 91
        assert status["ready"]
        result = await engine.generate(PROMPT, **HASHED).collect()
        assert result.logits_hash == expected.logits_hash
        assert result.token_ids == expected.token_ids
        assert result.hops_per_token == 93
