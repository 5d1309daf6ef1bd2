"""State barriers: rejected rows, rollbacks and resumption from tokens leave no trace in any cache."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aeonflow.errors import AeonflowError, BadTensorError, RollbackError
from aeonflow.kv_options import Barrier, parse_kv_options
from aeonflow.tensors import Want
from stations.models.folder import ModelFolder

from .fleets import PROMPT, TOKENS, Outcome, Plain, connected, engine_on, stations
from .speculating_host import Asked, speculated
from .test_kvrun_modes import MODES, QUICK, wire

BARRIERS = {
    "f16": (),
    "q8": (Barrier(4 + 32 + 32, 32),),
    "q8 with few exact rows": (Barrier(4 + 16 + 64, 32),),
    "q8 without exact rows": (Barrier(64),),
    "q8k": (Barrier(4 + 32 + 32, 32),),
    "q8v": (Barrier(64),),
    "q4": (Barrier(4 + 64 + 32, 32),),
    "q4 with few exact rows": (Barrier(4 + 8 + 32, 32),),
}


def truth_of(mode: str, plain: Plain) -> Outcome:
    return plain.generated(parse_kv_options(wire(MODES[mode])))


@pytest.mark.parametrize("mode", MODES)
async def test_every_kv_holder_answers_with_its_barriers_and_the_host_takes_the_union(
    mode: str, model: ModelFolder
) -> None:
    async with engine_on("trisplit", model, **MODES[mode]) as engine:
        assert (await engine.network.open(300)).barriers == BARRIERS[mode]


@pytest.mark.parametrize("mode", QUICK)
@pytest.mark.parametrize("plan", ["layers:2", "trisplit"])
async def test_wrong_rows_that_an_epoch_cuts_leave_no_trace(
    plan: str, mode: str, model: ModelFolder, plain: Plain
) -> None:
    expected = truth_of(mode, plain)
    async with engine_on(plan, model, **MODES[mode]) as engine:
        for seed, chunk in ((1, 7), (2, 100_000)):
            assert await speculated(engine, PROMPT, expected.tokens, chunk=chunk, seed=seed) == expected


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("route", ["chain", "relay"])
@pytest.mark.parametrize("plan", ["layers:1", "layers:3", "trisplit"])
async def test_wrong_rows_leave_no_trace_on_all_plans_modes_and_chunks(
    plan: str, route: str, mode: str, model: ModelFolder, plain: Plain
) -> None:
    for length in (20, 60, 150):  # decoding crosses the first barrier itself
        expected = plain.generated(parse_kv_options(wire(MODES[mode])), PROMPT[:length], 60)
        async with engine_on(plan, model, route=route, **MODES[mode]) as engine:
            for seed, chunk in enumerate((1, 7, 64, 100_000)):
                found = await speculated(engine, PROMPT[:length], expected.tokens, chunk=chunk, seed=seed)
                assert found == expected, (length, chunk)


@pytest.mark.parametrize("mode", QUICK)
async def test_edited_history_below_a_barrier_is_computed_anew(mode: str, model: ModelFolder, plain: Plain) -> None:
    edited = [*PROMPT[:50], *PROMPT[100:]]
    expected = plain.generated(parse_kv_options(wire(MODES[mode])), edited)
    async with engine_on("layers:2", model, **MODES[mode]) as engine, engine.session() as session:
        first = await session.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, logits_hash=True).collect()
        assert Outcome(first.token_ids, first.logits_hash or "") == truth_of(mode, plain)
        again = await session.generate(edited, max_tokens=TOKENS, ignore_eos=True, logits_hash=True).collect()
    assert Outcome(again.token_ids, again.logits_hash or "") == expected
    assert again.usage.cached_tokens == (50 if mode == "f16" else 0)


@pytest.mark.parametrize("mode", QUICK)
async def test_history_that_goes_on_above_the_last_barrier_is_kept(mode: str, model: ModelFolder, plain: Plain) -> None:
    longer = [*PROMPT[:145], 5, 6, 7, 8]
    expected = plain.generated(parse_kv_options(wire(MODES[mode])), longer, 12)
    async with engine_on("layers:2", model, **MODES[mode]) as engine, engine.session() as session:
        await session.generate(PROMPT, max_tokens=3, ignore_eos=True).collect()
        again = await session.generate(longer, max_tokens=12, ignore_eos=True, logits_hash=True).collect()
    assert Outcome(again.token_ids, again.logits_hash or "") == expected
    assert again.usage.cached_tokens == 145


@pytest.mark.parametrize("mode", ["q8 without exact rows", "q4 with few exact rows"])
async def test_a_prefill_cancelled_beyond_a_barrier_goes_on_from_tokens(
    mode: str, model: ModelFolder, plain: Plain
) -> None:
    async with (
        stations("layers:2", model) as running,
        connected(running, **MODES[mode]) as engine,
        engine.session() as session,
    ):
        generation = session.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, prefill_chunk=3)
        task = asyncio.create_task(generation.collect())
        (_, core), *_ = running.values()
        async with asyncio.timeout(60):
            while max((s.length(0) for s in core.sessions), default=0) < 70:  # noqa: ASYNC110  no event tells it
                await asyncio.sleep(0)
        generation.cancel()
        assert (await task).token_ids == (), "the prefill was over before it was cancelled"
        again = await session.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, logits_hash=True).collect()
    assert Outcome(again.token_ids, again.logits_hash or "") == truth_of(mode, plain)


async def test_a_rollback_deeper_than_can_be_undone_is_an_error_and_resume_starts_from_tokens(
    model: ModelFolder, plain: Plain
) -> None:
    expected = truth_of("q8 without exact rows", plain)
    async with engine_on("layers:2", model, kv="q8", kv_exact_recent=0) as engine:
        network = engine.network
        sequence = await network.open(300)
        host = Asked(sequence)
        await host.prefill(PROMPT[:100], 32)
        sequence.restart(70)
        assert not sequence.is_cut_too_deep
        await host.send([9] * 30, Want.LAST)
        sequence.restart(40)  # below the barrier at 64: rows were coded anew there
        assert sequence.is_cut_too_deep
        with pytest.raises(RollbackError, match="position 40"):
            await host.send(PROMPT[40:50], Want.LAST)
        assert await network.resume(sequence, 40) == 0
        assert not sequence.is_cut_too_deep
        answer = await host.prefill(PROMPT, 16)
        assert answer.logits is not None
        assert int(answer.logits[-1].argmax()) == expected.tokens[0]


async def test_a_station_refuses_rows_across_a_barrier_and_at_one_that_is_not_settled(model: ModelFolder) -> None:
    async with engine_on("layers:2", model, kv="q8", kv_exact_recent=0) as engine:
        sequence = await engine.network.open(300)
        host = Asked(sequence)
        await host.prefill(PROMPT[:60], 100)
        barriers, sequence.barriers = sequence.barriers, ()  # a host that does not know them
        with pytest.raises(BadTensorError, match="rows 60 to 67 cross the state barrier at 64"):
            await host.send([1] * 8, Want.LAST)
        sequence.restart(60)
        await host.send([1] * 4, Want.LAST)
        with pytest.raises(BadTensorError, match="start at a state barrier: rows from 62 are not settled"):
            await host.send([2], Want.LAST, settled=62)
        sequence.restart(63)
        sequence.barriers = barriers
        await host.send([1], Want.LAST, settled=63)
        with pytest.raises(AssertionError, match="state barrier 64 over rows settled below 63"):
            sequence.send([2], Want.LAST, settled=63)
        assert (await host.send([2], Want.LAST)).last == 64


async def test_kv_memory_is_reserved_by_mode_before_prefill_and_given_back_on_close(model: ModelFolder) -> None:
    reserved: dict[str, int] = {}
    async with stations("layers:1", model) as running:
        ((_, core),) = running.values()
        for mode, options in MODES.items():
            async with connected(running, **options) as engine:
                sequence = await engine.network.open(3000)
                await Asked(sequence).prefill(PROMPT, 100)
                session = core.sessions.get(sequence.session)
                assert session is not None
                reserved[mode] = core.sessions.reserved_bytes
                assert session.cached_bytes() <= reserved[mode]
                assert str(session.layout.options).split()[0] == options["kv"]
                engine.network.close_session(sequence)
            assert core.sessions.reserved_bytes == 0
    assert reserved["q4"] < reserved["q8"] < reserved["q8v"] < reserved["f16"] * 2


@pytest.mark.parametrize(("options", "positions"), [({"kv": "f32"}, 127), ({"kv": "f16"}, 255)])
async def test_a_session_that_does_not_fit_the_budget_is_refused_with_the_numbers(
    options: dict[str, Any], positions: int, model: ModelFolder
) -> None:
    budget = 4 * 128 * 2 * 2 * 16 * 4  # 128 positions in f32
    async with (
        stations("layers:1", model, kv_budget_bytes=budget) as running,
        connected(running, **options) as engine,
    ):
        network = engine.network
        network.close_session(await network.open(positions))
        with pytest.raises(AeonflowError, match=f"{positions + 2} positions needs .* of 131,072 are free"):
            await network.open(positions + 2)
