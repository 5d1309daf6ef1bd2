"""One generation: chunks, results, stop strings, limits, cancellation; many at once in one engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aeonflow.errors import CallError
from host import Chunk, Engine, Result
from host.errors import EngineClosedError
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, LocalFleet, local_fleet

PROMPTS = [
    "Tell me of the sea.",
    "Tell me of the sky.",  # equal length, shared prefix
    "Tell me of the sea. Then of the land.",
    "1 2 3 4 5 6",
    "def f(x):",
    "A B C D E F G H",
    "x",
    "Tell me of the sea. " * 3,
]


@asynccontextmanager
async def running(
    model: ModelFolder, plan: str = "trisplit", **options: object
) -> AsyncIterator[tuple[Engine, LocalFleet]]:
    async with (
        local_fleet(plan, model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", **options) as engine,  # type: ignore[arg-type]
    ):
        yield engine, fleet


async def until_no_session(fleet: LocalFleet) -> None:
    await fleet.until(lambda stations: not any(stations.sessions()))


async def test_chunks_join_to_the_result(model: ModelFolder) -> None:
    async with running(model) as (engine, _):
        generation = engine.generate("Hello", max_tokens=10, ignore_eos=True)
        chunks = [chunk async for chunk in generation]
        result = generation.result
    assert "".join(chunk.text for chunk in chunks) == result.text
    assert [token for chunk in chunks for token in chunk.token_ids] == list(result.token_ids)
    assert [chunk.finish_reason for chunk in chunks] == [None] * 9 + ["length"]
    assert isinstance(chunks[0], Chunk)


async def test_a_result_holds_every_field_of_the_json(model: ModelFolder) -> None:
    async with running(model) as (engine, _):
        result = await engine.generate("Hello", max_tokens=4, ignore_eos=True).collect()
        hashed = await engine.generate("Hello", max_tokens=4, ignore_eos=True, logits_hash=True, logprobs=2).collect()
    found = json.loads(json.dumps(result.to_json()))
    assert found.keys() == {
        "text", "token_ids", "prompt_ids", "finish_reason", "usage", "timings", "plan", "route", "kernels",
        "transport", "exactness", "hops_per_token", "bytes_per_token", "kv", "speculation", "pair_x",
    }  # fmt: skip
    assert found["usage"] == {"prompt_tokens": len(result.prompt_ids), "completion_tokens": 4, "cached_tokens": 0}
    assert found["finish_reason"] == "length"
    assert found["timings"].keys() == {"ttft_s", "prefill_tok_s", "decode_tok_s", "total_s"}
    assert all(value > 0 for value in found["timings"].values())
    assert found["plan"] == "connected"
    assert found["transport"] == "websockets"
    assert found["exactness"] == {"cut": "bounded", "model": "exact"}
    assert len(hashed.to_json()["logits_hash"]) == 64
    assert len(hashed.to_json()["logprobs"]) == 4
    assert [len(one.top) for one in hashed.logprobs or ()] == [2] * 4
    assert hashed.token_ids == result.token_ids


async def test_sixteen_parallel_requests_each_equal_their_sequential_run(model: ModelFolder) -> None:
    async with running(model) as (engine, fleet):

        async def answer(number: int) -> Result:
            prompt = PROMPTS[number % len(PROMPTS)] + " " * (number // len(PROMPTS))
            chunk = (None, 1, 5)[number % 3]
            options = {"temperature": 0.8, "seed": number} if number % 4 == 3 else {}
            generation = engine.generate(
                prompt, max_tokens=3 + number % 4, ignore_eos=True, logits_hash=True, prefill_chunk=chunk, **options
            )
            return await generation.collect()

        together = await asyncio.gather(*(answer(number) for number in range(16)))
        alone = [await answer(number) for number in range(16)]
        await until_no_session(fleet)
        assert (await engine.status())["sessions"] == 0
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert [r.logits_hash for r in together] == [r.logits_hash for r in alone]
    assert [r.text for r in together] == [r.text for r in alone]
    assert len({r.logits_hash for r in alone}) == 16


async def test_text_ends_before_a_stop_string_that_lies_over_a_token_boundary(model: ModelFolder) -> None:
    async with running(model) as (engine, _):
        plain = await engine.generate("Hello", max_tokens=24, ignore_eos=True).collect()
        stop = plain.text[5:9]
        cut = await engine.generate("Hello", max_tokens=24, ignore_eos=True, stop=[stop]).collect()
    at = plain.text.index(stop)
    assert cut.text == plain.text[:at]
    assert cut.finish_reason == "stop"
    assert cut.token_ids == plain.token_ids[: len(cut.token_ids)]
    assert len(cut.token_ids) < len(plain.token_ids)


async def test_an_end_token_ends_the_answer_also_beside_stop_strings(model: ModelFolder) -> None:
    async with running(model, "layers:1") as (engine, _):
        for seed in range(40):
            options = {"max_tokens": 50, "temperature": 3.0, "seed": seed}
            free = await engine.generate("Hello", ignore_eos=True, **options).collect()
            ends = [i for i, token in enumerate(free.token_ids) if token in (0, 2)]
            if ends:
                break
        ended = await engine.generate("Hello", stop=["never said"], **options).collect()
    assert ended.token_ids == free.token_ids[: ends[0] + 1]
    assert ended.finish_reason == "stop"
    assert "<|" not in ended.text


async def test_the_same_seed_gives_the_same_tokens_on_every_plan_and_another_seed_others(model: ModelFolder) -> None:
    found = []
    for plan in ("layers:1", "trisplit"):
        async with running(model, plan) as (engine, _):
            for seed in (1, 2):
                options = {"temperature": 1.0, "top_k": 50, "top_p": 0.95, "seed": seed}
                found.append(
                    (await engine.generate("Hi", max_tokens=12, ignore_eos=True, **options).collect()).token_ids
                )
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0] != found[1]


async def test_generation_ends_with_length_when_the_context_is_full(model: ModelFolder) -> None:
    context = model.card.context_length
    async with running(model, "layers:1") as (engine, _):
        ids = [5] * (context - 2)
        result = await engine.generate(ids, max_tokens=50, ignore_eos=True).collect()
    assert result.finish_reason == "length"
    assert len(result.token_ids) == 3  # the last token needs no row of its own


@pytest.mark.parametrize("read", [0, 1, 5])
async def test_closing_the_iterator_frees_every_station(read: int, model: ModelFolder) -> None:
    async with running(model) as (engine, fleet):
        generation = engine.generate("Hello", max_tokens=1000, ignore_eos=True)
        for _ in range(read):
            await anext(generation)
        await generation.aclose()
        await until_no_session(fleet)
        assert generation.result.finish_reason == "cancelled"
        assert (await engine.status())["ready"]


async def test_cancelling_the_task_in_the_middle_of_a_prefill_frees_every_station(model: ModelFolder) -> None:
    async with running(model) as (engine, fleet):
        prompt = [7] * 480
        task = asyncio.create_task(engine.generate(prompt, max_tokens=5, prefill_chunk=1).collect())
        await fleet.until(lambda stations: stations.station("attn").core.counters.rows.get("attn", 0) >= 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_no_session(fleet)
        rows = fleet.stations[0].core.counters.rows["attn"]
        assert rows < 480 * model.card.num_layers
        after = await engine.generate("Hello", max_tokens=4, ignore_eos=True).collect()
        assert len(after.token_ids) == 4


async def test_a_generation_that_nobody_holds_any_more_is_cancelled(model: ModelFolder) -> None:
    async with running(model) as (engine, fleet):
        generation = engine.generate("Hello", max_tokens=1500, ignore_eos=True)
        await anext(generation)
        del generation
        await until_no_session(fleet)


async def test_leaving_the_engine_ends_what_runs_with_an_error(model: ModelFolder) -> None:
    async with running(model) as (engine, _):
        generation = engine.generate("Hello", max_tokens=1500, ignore_eos=True)
        await anext(generation)
    with pytest.raises(EngineClosedError, match="left"):
        async for _ in generation:
            pass
    with pytest.raises(EngineClosedError):
        await engine.generate("again").collect()


async def test_a_running_decode_goes_on_while_a_long_prompt_is_prefilled(model: ModelFolder) -> None:
    async with running(model) as (engine, _):
        decoding = engine.generate("Hello", max_tokens=400, ignore_eos=True)
        await anext(decoding)
        prompt = [9] * 480
        prefilling = asyncio.create_task(engine.generate(prompt, max_tokens=1).collect())
        tokens = 0
        async with asyncio.timeout(60):
            while not prefilling.done():
                await anext(decoding)
                tokens += 1
        await prefilling
        decoding.cancel()
    assert tokens > 3


async def test_what_a_station_refuses_is_raised_and_leaves_nothing(model: ModelFolder) -> None:
    async with running(model) as (engine, fleet):
        with pytest.raises(CallError, match=str(model.card.context_length)):
            await engine.network.open(model.card.context_length + 1)
        await until_no_session(fleet)
        assert engine.network.sequences == {}


async def test_tokenize_encodes_as_a_prompt_would_be(model: ModelFolder) -> None:
    async with running(model, "layers:1") as (engine, _):
        raw = engine.tokenize("Hello")
        templated = engine.tokenize("Hello", raw=False)
        result = await engine.generate("Hello", max_tokens=1).collect()
        assert list(result.prompt_ids) == templated
        assert engine.detokenize(raw) == "Hello"
