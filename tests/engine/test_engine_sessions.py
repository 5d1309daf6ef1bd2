"""Conversations keep their KV: the common token prefix is reused, edited history is computed anew, never mixed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import MappingProxyType

import pytest

from aeonflow.errors import CancelledCallError
from host import Engine, Result
from host.errors import InvalidRequestError
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, LocalFleet, local_fleet


@pytest.fixture
async def fleet(model: ModelFolder) -> AsyncIterator[LocalFleet]:
    async with local_fleet("trisplit", model) as fleet:
        yield fleet


@pytest.fixture
async def engine(fleet: LocalFleet) -> AsyncIterator[Engine]:
    async with Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine:
        yield engine


async def cold(engine: Engine, prompt: object, tokens: int = 6) -> Result:
    return await engine.generate(prompt, max_tokens=tokens, ignore_eos=True, logits_hash=True).collect()  # type: ignore[arg-type]


def same(warm: Result, fresh: Result) -> bool:
    return (warm.token_ids, warm.logits_hash, warm.prompt_ids) == (fresh.token_ids, fresh.logits_hash, fresh.prompt_ids)


async def test_a_second_turn_reuses_the_rows_of_the_first(engine: Engine) -> None:
    async with engine.session() as session:
        first = await session.generate("How high is the sky?", max_tokens=6, ignore_eos=True).collect()
        second = await session.generate("And the sea?", max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2
        assert session.messages[1]["content"] == first.text
        history = session.messages[:3]
    assert second.usage.cached_tokens >= len(first.prompt_ids)
    assert same(second, await cold(engine, history))


async def test_edited_history_is_computed_anew_from_the_edit_on(engine: Engine) -> None:
    ids = list(range(10, 60))
    edited = [*ids[:20], 5, *ids[21:]]
    async with engine.session() as session:
        await session.generate(ids, max_tokens=6, ignore_eos=True).collect()
        result = await session.generate(edited, max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        assert result.usage.cached_tokens == 20
        assert same(result, await cold(engine, edited))
        back = await session.generate(ids, max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        assert back.usage.cached_tokens == 20
        assert same(back, await cold(engine, ids))


async def test_the_same_prompt_twice_computes_its_last_token_again(engine: Engine) -> None:
    ids = list(range(10, 40))
    async with engine.session() as session:
        first = await session.generate(ids, max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        again = await session.generate(ids, max_tokens=6, ignore_eos=True, logits_hash=True).collect()
    assert again.usage.cached_tokens == len(ids) - 1
    assert same(again, first)


async def test_a_shorter_prompt_that_is_a_prefix_gives_its_own_answer(engine: Engine) -> None:
    ids = list(range(10, 40))
    async with engine.session() as session:
        await session.generate(ids, max_tokens=6, ignore_eos=True).collect()
        shorter = await session.generate(ids[:12], max_tokens=6, ignore_eos=True, logits_hash=True).collect()
    assert shorter.usage.cached_tokens == 11
    assert same(shorter, await cold(engine, ids[:12]))


async def test_a_turn_after_a_cancelled_one_is_as_if_it_had_not_been(engine: Engine) -> None:
    ids = list(range(10, 50))
    async with engine.session() as session:
        cancelled = session.generate(ids, max_tokens=100, ignore_eos=True)
        for _ in range(5):
            await anext(cancelled)
        cancelled.cancel()
        after = await session.generate([*ids, 7, 8], max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        assert after.usage.cached_tokens == len(ids)
    assert same(after, await cold(engine, [*ids, 7, 8]))


async def test_a_turn_cancelled_in_its_prefill_leaves_the_rows_that_were_answered(
    engine: Engine, fleet: LocalFleet
) -> None:
    ids = list(range(10, 50))
    async with engine.session() as session:
        prefill = asyncio.create_task(session.generate([*ids, *range(100, 400)], prefill_chunk=1).collect())
        await fleet.until(lambda _: any(one.length >= 45 for one in engine.network.sequences.values()))
        prefill.cancel()
        with pytest.raises(asyncio.CancelledError):
            await prefill
        after = await session.generate([*ids, 7, 8], max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        assert after.usage.cached_tokens == len(ids)
    assert same(after, await cold(engine, [*ids, 7, 8]))


async def test_a_turn_that_stopped_at_a_string_leaves_no_row_too_many(engine: Engine) -> None:
    ids = list(range(10, 50))
    plain = await cold(engine, ids, 12)
    async with engine.session() as session:
        stopped = await session.generate(ids, max_tokens=12, ignore_eos=True, stop=plain.text[3:6]).collect()
        assert stopped.finish_reason == "stop"
        longer = [*ids, *stopped.token_ids, 9]
        after = await session.generate(longer, max_tokens=6, ignore_eos=True, logits_hash=True).collect()
    assert same(after, await cold(engine, longer))


async def test_a_conversation_that_outgrows_its_reservation_goes_on(engine: Engine, model: ModelFolder) -> None:
    async with engine.session() as session:
        await session.generate([5] * 40, max_tokens=4, ignore_eos=True).collect()
        assert session._sequence is not None
        session._sequence.max_positions = 50
        longer = [5] * 40 + [6] * 20
        after = await session.generate(longer, max_tokens=4, ignore_eos=True, logits_hash=True).collect()
    assert same(after, await cold(engine, longer, 4))


async def test_a_session_refuses_what_is_no_message_and_keeps_its_history(engine: Engine) -> None:
    async with engine.session() as session:
        with pytest.raises(InvalidRequestError, match="message 1 is a str"):
            session.generate([{"role": "user", "content": "Hello"}, "and this"])  # type: ignore[list-item]
        assert session.messages == []
        told = MappingProxyType({"role": "user", "content": "Hello"})
        answer = await session.generate([told], max_tokens=3, ignore_eos=True).collect()
        assert session.messages == [dict(told), {"role": "assistant", "content": answer.text}]


async def test_closing_a_session_frees_its_rows_at_every_station(engine: Engine, fleet: LocalFleet) -> None:
    session = engine.session()
    await session.generate("Hello", max_tokens=3).collect()
    assert fleet.sessions() == [1] * 4
    await session.close()
    await fleet.until(lambda stations: not any(stations.sessions()))


async def test_closing_a_session_cancels_the_answer_under_way(engine: Engine, fleet: LocalFleet) -> None:
    session = engine.session()
    generation = session.generate("Hello", max_tokens=400, ignore_eos=True)
    await anext(generation)
    await session.close()
    assert (await generation.collect()).finish_reason == "cancelled"
    await fleet.until(lambda stations: not any(stations.sessions()))


async def test_a_lost_station_does_not_end_a_conversation(engine: Engine, fleet: LocalFleet) -> None:
    ids = list(range(10, 50))
    async with engine.session() as session:
        await session.generate(ids, max_tokens=6, ignore_eos=True).collect()
        station = fleet.station("attn")
        await station.stop()
        await station.start()
        longer = [*ids, 7, 8, 9]
        after = await session.generate(longer, max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        assert after.usage.cached_tokens == 0
        again = await session.generate([*longer, 3], max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        assert again.usage.cached_tokens == len(longer)
    assert same(after, await cold(engine, longer))
    assert same(again, await cold(engine, [*longer, 3]))


async def test_rows_that_every_station_still_holds_are_kept_when_one_without_rows_returns(
    engine: Engine, fleet: LocalFleet
) -> None:
    ids = list(range(10, 50))
    async with engine.session() as session:
        await session.generate(ids, max_tokens=6, ignore_eos=True).collect()
        station = fleet.station("down")
        await station.stop()
        await station.start()
        longer = [*ids, 7, 8, 9]
        after = await session.generate(longer, max_tokens=6, ignore_eos=True, logits_hash=True).collect()
        assert after.usage.cached_tokens == len(ids)
    assert same(after, await cold(engine, longer))


async def test_a_resumption_that_was_cut_short_is_made_again(engine: Engine, fleet: LocalFleet) -> None:
    ids = list(range(10, 50))
    async with engine.session() as session:
        await session.generate(ids, max_tokens=6, ignore_eos=True).collect()
        station = fleet.station("attn")
        await station.stop()
        await station.start()
        await engine.network.wait_ready(60.0)
        cut_short = asyncio.create_task(session.generate([*ids, 7], max_tokens=6, ignore_eos=True).collect())
        await fleet.until(lambda _: station.num_sessions == 1)  # opened there again; the host does not know it yet
        cut_short.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_short
        longer = [*ids, 7, 8, 9]
        after = await session.generate(longer, max_tokens=6, ignore_eos=True, logits_hash=True).collect()
    assert same(after, await cold(engine, longer))
    await fleet.until(lambda stations: not any(stations.sessions()))


async def test_a_session_closed_while_an_answer_is_about_to_begin_leaves_nothing_at_the_stations(
    engine: Engine, fleet: LocalFleet
) -> None:
    session = engine.session()
    answer = asyncio.create_task(session.generate("Hello", max_tokens=400, ignore_eos=True).collect())
    await fleet.until(lambda stations: any(stations.sessions()))
    await session.close()
    with pytest.raises(CancelledCallError, match="closed before its answer began"):
        await answer
    await fleet.until(lambda stations: not any(stations.sessions()))
    again = await session.generate([1, 2, 3], max_tokens=4, ignore_eos=True, logits_hash=True).collect()
    assert same(again, await cold(engine, [1, 2, 3], 4))
    await session.close()
