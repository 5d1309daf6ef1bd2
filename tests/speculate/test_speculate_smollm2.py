"""Speculation on the real model: 25 prompts, greedy and sampled, every drafter and plan, against plain solo."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from host import Engine, Result
from host.bench.prompts import load_prompts

from .means import AlwaysDrafts
from .test_speculate_engine import seen

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())["prompts"]
SETS = {
    "golden": tuple(golden["prompt"] for golden in GOLDEN),
    "chat": load_prompts("chat").texts[:10],
    "edit": load_prompts("edit").texts[:10],
}
PROMPTS = [text for texts in SETS.values() for text in texts]
GREEDY: dict[str, Any] = {"max_tokens": 64, "ignore_eos": True, "logits_hash": True}
SAMPLED: dict[str, Any] = {**GREEDY, "temperature": 0.8, "top_p": 0.95, "seed": 17}
WAYS: dict[str, dict[str, Any]] = {
    "solo lookup": {"plan": "solo", "speculate": "lookup"},
    "solo model": {"plan": "solo", "speculate": "model:smollm2"},
    "layers:2 lookup": {"plan": "layers:2", "speculate": "lookup"},
    "ffslice:2 lookup": {"plan": "ffslice:2", "speculate": "lookup"},
    "trisplit auto": {"plan": "trisplit", "speculate": "auto", "pair_x": "draft"},
    "trisplit relay lookup": {"plan": "trisplit", "route": "relay", "speculate": "lookup"},
    "trisplit relay auto": {"plan": "trisplit", "route": "relay", "speculate": "auto", "pair_x": "draft"},
    "trisplit of x auto": {"plan": "trisplit", "speculate": "auto", "pair_x": "draft", "pair_x_seed": "x"},
    "trisplit bypass lookup": {"plan": "trisplit", "speculate": "lookup", "pair_x": "bypass"},
    "trisplit model": {"plan": "trisplit", "speculate": "model:smollm2"},
    "ffslice:8+shards=2 lookup": {"plan": "ffslice:8+shards=2", "speculate": "lookup"},
    "layers:3 relay auto": {"plan": "layers:3", "route": "relay", "speculate": "auto"},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


async def answers(engine: Engine, options: dict[str, Any]) -> list[Result]:
    return [await engine.generate(prompt, **options).collect() for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(smollm2: Path) -> tuple[list[Result], list[Result]]:
    """Plain solo: greedy and sampled."""

    async def plain() -> tuple[list[Result], list[Result]]:
        async with Engine.launch(model=str(smollm2)) as engine:
            return await answers(engine, GREEDY), await answers(engine, SAMPLED)

    return asyncio.run(plain())


def sure_of_itself(engine: Engine) -> None:
    """Guesses are verified whatever rows cost, so that there is something to compare."""
    engine.drafters.times.num_plain = 99
    engine.drafters.times.row_s, engine.drafters.times.extra_s = 10.0, 0.0
    engine.drafters.times.learn = lambda rows, seconds: None  # type: ignore[method-assign]
    if engine.drafters.drafts is not None:
        engine.drafters.drafts = AlwaysDrafts()


@pytest.mark.parametrize("way", WAYS)
async def test_25_prompts_have_the_tokens_and_logits_of_plain_solo(
    way: str, expected: tuple[list[Result], list[Result]], smollm2: Path
) -> None:
    async with Engine.launch(model=str(smollm2), **WAYS[way]) as engine:
        sure_of_itself(engine)
        for options, want in zip((GREEDY, SAMPLED), expected, strict=True):
            found = await answers(engine, options)
            assert [seen(one) for one in found] == [seen(one) for one in want]
            assert sum(one.speculation["accepted"] for one in found) > 100
    assert [list(one.token_ids) for one in expected[0][: len(GOLDEN)]] == [g["f32_ref"]["greedy_ids"] for g in GOLDEN]


@pytest.mark.parametrize(
    ("name", "least"),
    [("edit", 2.4), ("chat", 1.05)],
)
async def test_lookup_finds_what_answers_copy(
    name: str, least: float, smollm2: Path, record_property: Callable[[str, object], None]
) -> None:
    async with Engine.launch(model=str(smollm2), speculate="lookup") as engine:
        sure_of_itself(engine)
        found = [await engine.generate(text, max_tokens=100).collect() for text in SETS[name]]
    tokens = sum(len(one.token_ids) - 1 for one in found)
    passes = sum(one.speculation["passes"] for one in found)
    record_property("tokens_per_pass", round(tokens / passes, 3))
    assert tokens / passes > least


async def test_a_model_that_guesses_for_itself_is_always_right(smollm2: Path) -> None:
    async with Engine.launch(model=str(smollm2), speculate="model:smollm2") as engine:
        sure_of_itself(engine)
        found = [await engine.generate(text, **SAMPLED).collect() for text in SETS["golden"]]
        assert {one.speculation["acceptance"] for one in found if one.speculation["drafted"]} == {1.0}
        assert sum(one.speculation["drafted"] for one in found) > 100
