"""The pipelined draft of Pair X on real stations: its guesses start rows early and decide nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from kvrun.fleets import PROMPT, connected, stations

from aeonflow.errors import AeonflowError
from host import Engine
from stations.models.folder import ModelFolder

from .means import AlwaysDrafts, EagerSizer
from .test_speculate_engine import SAMPLING, answer, seen


def draft_always(engine: Engine) -> AlwaysDrafts:
    assert engine.drafters.drafts is not None
    engine.drafters.drafts = AlwaysDrafts()
    return engine.drafters.drafts


@pytest.mark.parametrize("seed", ["h", "x"])
@pytest.mark.parametrize("plan", ["trisplit", "trisplit+shards=2", "trisplit:per-layer"])
async def test_i1_tokens_logits_and_usage_are_those_of_plain_decoding(plan: str, seed: str, model: ModelFolder) -> None:
    async with stations(plan, model) as running, connected(running) as plain:
        expected = [await answer(plain, PROMPT, logprobs=1, **how) for how in SAMPLING.values()]
        async with connected(running, pair_x="draft", pair_x_seed=seed, speculate="auto") as engine:
            draft_always(engine)
            rng = random.Random(1)
            for sizer in (None, lambda: EagerSizer(rng)):
                if sizer is not None:
                    engine.drafters.new_sizer = sizer  # type: ignore[method-assign]
                for want, how in zip(expected, SAMPLING.values(), strict=True):
                    found = await answer(engine, PROMPT, logprobs=1, **how)
                    assert seen(found) == seen(want)
                    assert found.speculation["sources"]["draft"]["drafted"] > 5
                    assert found.to_json()["pair_x"]["drafted"] > 5


@pytest.mark.parametrize(
    "kv", [{"kv": "q8", "kv_exact_recent": 16}, {"kv": "q4", "kv_exact_recent": 8}, {"kv_max": 160}]
)
async def test_drafts_leave_no_trace_in_caches_that_change_form(kv: dict[str, Any], model: ModelFolder) -> None:
    async with stations("trisplit", model) as running:
        async with connected(running, **kv) as plain:
            expected = await answer(plain, PROMPT, max_tokens=60)
        async with connected(running, pair_x="draft", **kv) as engine:
            draft_always(engine)
            found = await answer(engine, PROMPT, max_tokens=60)
            assert seen(found) == seen(expected)


async def test_the_next_turn_finds_the_rows_of_plain_decoding(model: ModelFolder) -> None:
    async with stations("trisplit", model) as running:
        told = []
        for mode in ("off", "draft"):
            async with connected(running, pair_x=mode) as engine, engine.session() as session:
                if mode == "draft":
                    draft_always(engine)
                turns, prompt = [], list(PROMPT)
                for extra in (3, 4, 5):
                    one = session.generate(prompt, max_tokens=17, ignore_eos=True, logits_hash=True)
                    result = await one.collect()
                    turns.append(seen(result))
                    prompt = [*prompt, *result.token_ids, extra]
                told.append(turns)
        assert told[0] == told[1]


async def test_several_answers_draft_side_by_side(model: ModelFolder) -> None:
    prompts = [[*PROMPT, extra] for extra in range(4)]
    async with stations("trisplit", model) as running, connected(running) as plain:
        expected = [await answer(plain, prompt) for prompt in prompts]
        async with connected(running, pair_x="draft") as engine:
            draft_always(engine)
            found = await asyncio.gather(*(answer(engine, prompt) for prompt in prompts))
            assert [seen(one) for one in found] == [seen(one) for one in expected]


async def test_drafts_stop_where_stations_are_busy_and_nothing_else_changes(model: ModelFolder) -> None:
    async with stations("trisplit", model) as running, connected(running) as plain:
        expected = await answer(plain, PROMPT)
        async with connected(running, pair_x="draft") as engine:
            engine.drafters.drafts = AlwaysDrafts(permit=lambda: False)
            found = await answer(engine, PROMPT)
            assert seen(found) == seen(expected)
            assert found.speculation["drafted"] == 0
            assert found.speculation["drafts"]["refused"] > 10


async def test_the_switch_begins_plain_and_its_figures_are_in_the_result(model: ModelFolder) -> None:
    async with stations("trisplit", model) as running, connected(running, pair_x="draft") as engine:
        result = await answer(engine, PROMPT, max_tokens=10)
        assert result.speculation["drafted"] == 0
        assert result.speculation["switch"]["phase"] == "plain"
        assert result.speculation["switch"]["plain_ms"] > 0
        status = (await engine.status())["speculation"]
        assert status["mode"] == "off"
        assert status["switch"]["plain_ms"] > 0
        assert status["row_ms"] > 0


async def test_a_station_that_dies_while_drafts_run_is_the_error_of_the_answer(model: ModelFolder) -> None:
    async with stations("trisplit", model) as running, connected(running, pair_x="draft", rejoin_s=0.0) as engine:
        draft_always(engine)
        generation = engine.generate(PROMPT, max_tokens=400, ignore_eos=True)
        for _ in range(5):
            await anext(generation)
        (station,) = [one for one in engine.network.stations if one.name == "gate_up"]
        await station.link.close("done")
        with pytest.raises(AeonflowError, match="gate_up"):
            await generation.collect()
        assert not engine.network.sequences
