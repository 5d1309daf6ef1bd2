"""Residual seeds on the real model: 25 prompts, greedy and sampled, in every mode, against plain solo; known facts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from host import Engine, Result
from host.bench.prompts import load_prompts
from host.launch import run_verb
from host.pairx.probe import gather_material, shipped_texts
from host.pairx.probe_report import to_report
from tests.speculate.means import AlwaysDrafts

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())["prompts"]
PROMPTS = [*(one["prompt"] for one in GOLDEN), *load_prompts("chat").texts[:10], *load_prompts("edit").texts[:10]]
GREEDY: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "logits_hash": True}
SAMPLED: dict[str, Any] = {**GREEDY, "temperature": 0.8, "top_p": 0.95, "seed": 17}
WAYS: dict[str, dict[str, Any]] = {
    "shadow": {"pair_x": "shadow"},
    "shadow of x": {"pair_x": "shadow", "pair_x_seed": "x"},
    "bypass": {"pair_x": "bypass"},
    "bypass of some layers": {"pair_x": "bypass", "pair_x_layers": "1,5-9,29"},
    "bypass by relay": {"pair_x": "bypass", "route": "relay"},
    "shadow by relay": {"pair_x": "shadow", "route": "relay"},
    "bypass beside shards": {"pair_x": "bypass", "plan": "trisplit+shards=2"},
    "draft": {"pair_x": "draft"},
    "draft of x": {"pair_x": "draft", "pair_x_seed": "x"},
    "draft of all layers": {"pair_x": "draft", "pair_x_layers": "all"},
    "draft of some layers": {"pair_x": "draft", "pair_x_layers": "4-6,8-11,13-29"},
    "draft beside shards": {"pair_x": "draft", "plan": "trisplit+shards=2"},
    "draft by relay": {"pair_x": "draft", "route": "relay"},
    "draft of x by relay": {"pair_x": "draft", "pair_x_seed": "x", "route": "relay"},
}
PER_LAYER: dict[str, dict[str, Any]] = {
    "shadow": {"pair_x": "shadow"},
    "bypass, lookup": {"pair_x": "bypass", "speculate": "lookup"},
    "draft": {"pair_x": "draft"},
    "draft of x, auto": {"pair_x": "draft", "pair_x_seed": "x", "speculate": "auto"},
    "draft by relay": {"pair_x": "draft", "route": "relay"},
}
TOKEN = "of-ninety-one-stations"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


async def answers(engine: Engine, options: dict[str, Any]) -> list[Result]:
    return [await engine.generate(prompt, **options).collect() for prompt in PROMPTS]


def seen(results: list[Result]) -> list[tuple[Any, ...]]:
    return [(one.token_ids, one.text, one.logits_hash) for one in results]


@pytest.fixture(scope="module")
def expected(smollm2: Path) -> tuple[list[Result], list[Result]]:
    """Plain solo: greedy and sampled."""

    async def plain() -> tuple[list[Result], list[Result]]:
        async with Engine.launch(model=str(smollm2)) as engine:
            return await answers(engine, GREEDY), await answers(engine, SAMPLED)

    return asyncio.run(plain())


@pytest.mark.parametrize("way", WAYS)
async def test_25_prompts_have_the_tokens_and_logits_of_plain_solo(
    way: str, expected: tuple[list[Result], list[Result]], smollm2: Path
) -> None:
    async with Engine.launch(**{"model": str(smollm2), "plan": "trisplit", **WAYS[way]}) as engine:
        if engine.drafters.drafts is not None:
            engine.drafters.drafts = AlwaysDrafts()
        drafted = 0
        for options, want in zip((GREEDY, SAMPLED), expected, strict=True):
            found = await answers(engine, options)
            assert seen(found) == seen(want)
            drafted += sum(one.pair_x["accepted"] for one in found)
        told = (await engine.status())["pair_x"]
    assert told["slots"] == 0
    assert all(not counts["missing"] for counts in told["lines"].values())
    assert told["lines"]["145"]["received"] > 1000
    assert (drafted > 200) == way.startswith("draft")


async def test_a_process_a_role_and_layer_gives_the_tokens_and_logits_of_plain_solo(
    expected: tuple[list[Result], list[Result]], smollm2: Path
) -> None:
    some = [*range(len(GOLDEN)), *range(len(GOLDEN), len(PROMPTS), 10)]  # one chat, one edit
    async with Engine.launch(model=str(smollm2), plan="trisplit:per-layer", token=TOKEN) as stations:
        urls = [station.url for station in stations.network.stations]
        for way, options in PER_LAYER.items():
            async with Engine.connect(urls, token=TOKEN, **options) as engine:
                if engine.drafters.drafts is not None:
                    engine.drafters.drafts = AlwaysDrafts()
                for kind, want in zip((GREEDY, SAMPLED), expected, strict=True):
                    found = [await engine.generate(PROMPTS[index], **kind).collect() for index in some]
                    assert seen(found) == seen([want[index] for index in some]), way
                told = (await engine.status())["pair_x"]
            assert told["slots"] == 0
            assert any(one.pair_x["accepted"] for one in found) == ("draft" in way)


async def test_the_probe_finds_the_known_facts(smollm2: Path) -> None:
    material = await gather_material(str(smollm2), shipped_texts(), tokens=256, new_tokens=24)
    report = to_report(await run_verb("seeded", str(smollm2), given=material.to_verb))
    assert report.passes_max_abs == ()
    assert min(one.max_abs for one in report.layers) > 4
    moves = [one.attention_moves for one in report.layers if one.attention_moves is not None]
    assert len(moves) == 29
    assert 0.05 < min(moves) < 0.2 < 1.5 < max(moves) < 2.5
    assert {1, 12} == set(report.ranking[-2:]), "the worst of all"
    assert {1, 2, 3, 7, 12} <= set(report.ranking[-9:])
    ratio = {len(one.layers): one.perplexity_ratio for one in report.sets}
    for size, least, most in ((2, 0.98, 1.04), (4, 0.98, 1.06), (8, 1.0, 1.12), (16, 1.1, 1.5), (24, 1.5, 2.6)):
        assert least < ratio[size] < most, (size, ratio[size])
    assert ratio[29] > 50
    assert {one.alpha > 0.75 for one in report.sets} == {True}
