"""Live seeds on 25 texts: models of 24 layers that are built for them, greedy and sampled, against plain solo."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from host import Engine
from stations.models.folder import ModelFolder
from stations.models.synthetic import build_synthetic
from tests.engine.local_stations import TOKEN, local_fleet

from .test_pairx_smollm2 import PROMPTS

SPEC = "synthetic:layers=24,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=512,context=1024,seed=5"
GREEDY: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True, "logits_hash": True}
SAMPLED: dict[str, Any] = {**GREEDY, "temperature": 0.8, "top_p": 0.95, "seed": 17}
LONGEST = 400  # characters of a text, each about a token
WAYS: dict[str, dict[str, Any]] = {
    "chain": {},
    "chain, some layers": {"pair_x_layers": "1-3,7,12-20,23"},
    "chain, lookup": {"speculate": "lookup", "plan": "trisplit+shards=2"},
    "relay": {"route": "relay"},
    "relay, some layers, lookup": {"route": "relay", "pair_x_layers": "2,5-9", "speculate": "lookup"},
}
Answered = list[tuple[tuple[int, ...], str, str | None]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def answers(engine: Engine) -> Answered:
    found = []
    for prompt in PROMPTS:
        for options in (GREEDY, SAMPLED):
            result = await engine.generate(prompt[:LONGEST], **options).collect()
            found.append((result.token_ids, result.text, result.logits_hash))
    return found


@pytest.fixture(scope="module", params=["ladder", "parallel"])
def built(
    request: pytest.FixtureRequest, tiny_model: object, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModelFolder, Answered]:
    """A model, and what one station says."""
    model = build_synthetic(f"{SPEC},residual={request.param}", tmp_path_factory.mktemp("models") / request.param)

    async def plain() -> Answered:
        async with (
            local_fleet("layers:1", model, "fast") as fleet,
            Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
        ):
            return await answers(engine)

    return model, asyncio.run(plain())


@pytest.mark.parametrize("way", WAYS)
async def test_25_texts_have_the_tokens_and_logits_of_plain_solo(way: str, built: tuple[ModelFolder, Answered]) -> None:
    model, expected = built
    options = {"plan": "trisplit", **WAYS[way]}
    async with (
        local_fleet(options.pop("plan"), model, "fast") as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", pair_x="live", **options) as engine,
    ):
        assert await answers(engine) == expected
        told = (await engine.status())["pair_x"]
    assert len(expected) == 50
    assert (told["mode"], told["problem"], told["slots"]) == ("live", "", 0)
    assert all(counts["received"] == counts["sent"] > 50 for counts in told["lines"].values())
