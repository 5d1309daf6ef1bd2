"""Speculation on real stations: tokens, text, logits, KV and usage are those of plain decoding, on every plan."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from kvrun.fleets import PROMPT, engine_on

from host import Engine, Result
from host.plan import effect_of
from host.speculate.drafters import Drafters
from stations.models.folder import ModelFolder

from .means import EagerSizer, Oracle

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 5},
}
LOOPING = [*PROMPT[:40], *PROMPT[20:40]]


def seen(result: Result) -> tuple[object, ...]:
    """What a caller sees of an answer, times and bytes aside."""
    return (
        result.token_ids, result.text, result.finish_reason, result.usage, result.logits_hash, result.logprobs,
    )  # fmt: skip


async def answer(engine: Engine, prompt: Sequence[int], **options: Any) -> Result:
    options = {"max_tokens": 40, "ignore_eos": True, "logits_hash": True, **options}
    return await engine.generate(prompt, **options).collect()


def guess_eagerly(engine: Engine, truth: Sequence[int], *, wrong: float, seed: int = 1) -> None:
    """From now on the engine's generations guess from `truth`, some tokens wrong, whatever it costs."""
    rng = random.Random(seed)
    drafters: Drafters = engine.drafters
    drafters.times.num_plain = 99
    drafters.new_sizer = lambda: EagerSizer(rng)  # type: ignore[method-assign]
    drafters.new_lookup = lambda: Oracle(rng, truth, 512, wrong)  # type: ignore[method-assign]


@pytest.fixture
async def engines(model: ModelFolder) -> AsyncIterator[tuple[Engine, Engine]]:
    """Plain and looking up, on one fleet each."""
    async with (
        engine_on("layers:2", model) as plain,
        engine_on("layers:2", model, speculate="lookup") as guessing,
    ):
        yield plain, guessing


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(
    ("plan", "route"), [("layers:2", "chain"), ("trisplit+shards=2", "chain"), ("trisplit", "relay")]
)
async def test_right_and_wrong_guesses_leave_no_trace(plan: str, route: str, sampling: str, model: ModelFolder) -> None:
    async with engine_on(plan, model, route=route, speculate="lookup") as engine:
        engine.drafters.mode = engine.drafters.mode._replace(kind="off")
        expected = await answer(engine, LOOPING, logprobs=2, **SAMPLING[sampling])
        assert expected.speculation["drafted"] == 0
        engine.drafters.mode = engine.drafters.mode._replace(kind="lookup")
        truth = [*LOOPING, *expected.token_ids]
        for seed, wrong in enumerate((0.0, 0.4)):
            guess_eagerly(engine, truth, wrong=wrong, seed=seed)
            found = await answer(engine, LOOPING, logprobs=2, **SAMPLING[sampling])
            assert seen(found) == seen(expected)
            assert found.speculation["tokens_per_pass"] > 1.2
            assert (found.speculation["restarts"] > 0) == (wrong > 0)


@pytest.mark.parametrize("kv", [{"kv": "q8"}, {"kv": "q4", "kv_exact_recent": 8}, {"window": 24}, {"kv_max": 128}])
async def test_rejected_rows_leave_no_trace_where_caches_change_form(kv: dict[str, Any], model: ModelFolder) -> None:
    async with (
        engine_on("layers:2", model, **kv) as plain,
        engine_on("layers:2", model, speculate="lookup", **kv) as guessing,
    ):
        expected = await answer(plain, LOOPING, max_tokens=110)
        guess_eagerly(guessing, [*LOOPING, *expected.token_ids], wrong=0.3)
        found = await answer(guessing, LOOPING, max_tokens=110)
        assert seen(found) == seen(expected)
        assert found.speculation["restarts"] > 5


async def test_an_answer_ends_inside_a_run_where_plain_decoding_ends_it(engines: tuple[Engine, Engine]) -> None:
    plain, guessing = engines
    whole = await answer(plain, LOOPING)
    guess_eagerly(guessing, [*LOOPING, *whole.token_ids, 3, 4, 5, 6], wrong=0.0)
    for length in (1, 2, 7, 23):
        expected = await answer(plain, LOOPING, max_tokens=length)
        assert seen(await answer(guessing, LOOPING, max_tokens=length)) == seen(expected)
    for at in (5, 12, 20):
        stop = whole.text[at : at + 3]
        expected = await answer(plain, LOOPING, stop=stop)
        found = await answer(guessing, LOOPING, stop=stop)
        assert (seen(found), found.finish_reason) == (seen(expected), "stop")


async def test_an_end_token_inside_a_run_ends_the_answer(engines: tuple[Engine, Engine]) -> None:
    plain, guessing = engines
    whole = await answer(plain, LOOPING)
    guess_eagerly(guessing, [*LOOPING, *whole.token_ids], wrong=0.0)
    for engine in engines:
        engine.network.bundle.text.tokenizer.eos_ids = frozenset([whole.token_ids[17]])
    expected = await answer(plain, LOOPING, ignore_eos=False)
    assert expected.finish_reason == "stop"
    assert seen(await answer(guessing, LOOPING, ignore_eos=False)) == seen(expected)


async def test_the_end_of_the_context_is_reached_with_the_same_tokens(engines: tuple[Engine, Engine]) -> None:
    plain, guessing = engines
    long = [(13 * i + 5) % 512 for i in range(4090)]
    expected = await answer(plain, long)
    assert len(expected.token_ids) == 7
    guess_eagerly(guessing, [*long, *expected.token_ids, 1, 2, 3, 4, 5, 6, 7], wrong=0.0)
    assert seen(await answer(guessing, long)) == seen(expected)


async def test_the_next_turn_reuses_exactly_the_rows_of_plain_decoding(engines: tuple[Engine, Engine]) -> None:
    plain, guessing = engines
    whole = await answer(plain, LOOPING)
    truth = [*LOOPING, *whole.token_ids]
    stop = whole.text[14:17]
    told = []
    for engine in engines:
        turns = []
        for wrong in (0.0, 0.5):
            if engine is guessing:
                guess_eagerly(engine, truth, wrong=wrong)
            async with engine.session() as session:
                for prompt, options in (
                    (LOOPING, {"stop": stop}),
                    (truth, {}),  # what came after the stop was not kept
                    ([*truth[:70], 9, 9], {"max_tokens": 9}),
                    ([*truth[:70], 9, 9, 8], {}),
                ):
                    one = session.generate(
                        prompt, **{"max_tokens": 20, "ignore_eos": True, "logits_hash": True, **options}
                    )
                    turns.append(seen(await one.collect()))
        told.append(turns)
    assert told[0] == told[1]


async def test_a_turn_after_a_cancelled_one_is_as_if_nothing_had_been_guessed(engines: tuple[Engine, Engine]) -> None:
    plain, guessing = engines
    whole = await answer(plain, LOOPING, max_tokens=100)
    expected = await answer(plain, [*LOOPING, *whole.token_ids[:3], 7])
    guess_eagerly(guessing, [*LOOPING, *whole.token_ids], wrong=0.2)
    async with guessing.session() as session:
        cancelled = session.generate(LOOPING, max_tokens=100, ignore_eos=True)
        for _ in range(5):
            await anext(cancelled)
        cancelled.cancel()
        again = await session.generate(
            [*LOOPING, *whole.token_ids[:3], 7], max_tokens=40, ignore_eos=True, logits_hash=True
        ).collect()
    assert again.usage.cached_tokens == len(LOOPING) + 3
    assert (again.token_ids, again.logits_hash) == (expected.token_ids, expected.logits_hash)


async def test_many_answers_at_once_keep_their_guesses_apart(engines: tuple[Engine, Engine]) -> None:
    plain, guessing = engines
    prompts = [[*LOOPING, extra] for extra in range(5)]
    expected = [await answer(plain, prompt) for prompt in prompts]
    guessing.drafters.times.num_plain = 99
    guessing.drafters.new_sizer = lambda: EagerSizer(random.Random(2))  # type: ignore[method-assign]
    found = await asyncio.gather(*(answer(guessing, prompt) for prompt in prompts))
    assert [seen(one) for one in found] == [seen(one) for one in expected]


def test_every_drafter_is_exact() -> None:
    for value in ("off", "lookup", "model:smollm2", "auto"):
        effect = effect_of("speculate", value)
        assert (effect.cut, effect.model) == ("exact", "exact")
