"""Rows that stations lost in the middle of an answer are computed anew from tokens: the same tokens and logits."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from aeonflow.errors import RollbackError, StationLostError
from aeonflow.kv_options import parse_kv_options
from host import Engine
from stations.core.station import Station
from stations.models.folder import ModelFolder

from .fleets import PROMPT, TOKENS, Outcome, Plain, connected, stations
from .test_kvrun_modes import wire

LOSING: dict[str, dict[str, Any]] = {
    "q8": {"kv": "q8"},
    "q8 without exact rows": {"kv": "q8", "kv_exact_recent": 0},
    "q4": {"kv": "q4", "kv_exact_recent": 8},
    "born": {"kv_max": 128},
    "window": {"window": 20},
}


def truth_of(name: str, plain: Plain, prompt: list[int] = PROMPT, tokens: int = TOKENS) -> Outcome:
    names = {"max": "max_rows"}
    options = {names.get(option, option): value for option, value in wire(LOSING[name]).items()}
    return plain.generated(parse_kv_options(options), prompt, tokens)


def lose_rows(core: Station, position: int) -> None:
    """As if a host had cut to `position`, below a change of form: what lay there is gone."""
    for session in core.sessions:
        session.cut_layers(0, 3, position)
        assert isinstance(session.lost, RollbackError)


@pytest.mark.parametrize(("name", "speculate"), [*((name, "off") for name in LOSING), ("q8", "lookup")])
async def test_rows_lost_while_tokens_come_are_computed_anew(
    name: str, speculate: str, model: ModelFolder, plain: Plain
) -> None:
    async with stations("layers:2", model) as running:
        cores = [core for _, core in running.values() if any(span.role == "block" for span in core.spans)]
        async with connected(running, speculate=speculate, **LOSING[name]) as engine:
            generation = engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, logits_hash=True)
            lost: list[int] = []

            def lose(seen: list[int]) -> None:
                if len(lost) < 2 and len(seen) >= 7 + 13 * len(lost):
                    lose_rows(cores[len(lost)], 40)
                    lost.append(len(seen))

            await each_chunk(generation, lose)
            result = generation.result
    assert Outcome(result.token_ids, result.logits_hash or "") == truth_of(name, plain)
    assert len(lost) == 2


@pytest.mark.parametrize("name", ["q8", "born"])
async def test_rows_lost_while_the_prompt_is_read_are_computed_anew(
    name: str, model: ModelFolder, plain: Plain
) -> None:
    async with stations("trisplit", model) as running, connected(running, **LOSING[name]) as engine:
        (core,) = (core for _, core in running.values() if any(span.role == "attn" for span in core.spans))
        is_lost = False
        compute = core.compute

        def losing(batch: Any) -> None:
            nonlocal is_lost
            compute(batch)
            if not is_lost and any(session.length(3) > 110 for session in core.sessions):
                is_lost = True
                lose_rows(core, 40)

        core.compute = losing  # type: ignore[method-assign]
        result = await engine.generate(
            PROMPT, max_tokens=TOKENS, ignore_eos=True, logits_hash=True, prefill_chunk=7
        ).collect()
        assert is_lost
    assert Outcome(result.token_ids, result.logits_hash or "") == truth_of(name, plain)


async def each_chunk(generation: Any, act: Any) -> list[int]:
    """The tokens; `act(tokens so far)` after every chunk."""
    seen: list[int] = []
    async for chunk in generation:
        seen += chunk.token_ids
        act(seen)
    return seen


async def test_a_station_that_loses_rows_again_and_again_ends_the_answer(model: ModelFolder) -> None:
    async with stations("layers:1", model) as running, connected(running, kv="q8") as engine:
        ((_, core),) = running.values()
        generation = engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True)
        with pytest.raises(RollbackError, match="resume from tokens"):
            await each_chunk(generation, lambda seen: lose_rows(core, 40))


@pytest.mark.parametrize("name", ["q4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("q8", "born"))])
async def test_a_killed_station_ends_the_answer_and_the_next_one_goes_on_to_the_same_tokens(
    name: str, model: ModelFolder, plain: Plain
) -> None:
    expected, seen = truth_of(name, plain).tokens, []
    launched = Engine.launch(model=str(model.path), plan="layers:2", **LOSING[name])
    async with launched as engine, engine.session() as talk:

        def kill(so_far: list[int]) -> None:
            seen[:] = so_far
            if len(so_far) == 9:
                os.kill(engine.network.stations[0].pid, signal.SIGKILL)

        generation = talk.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True)
        with pytest.raises(StationLostError, match="SIGKILL"):
            await each_chunk(generation, kill)
        assert tuple(seen) == expected[: len(seen)]
        rest = await talk.generate([*PROMPT, *seen], max_tokens=TOKENS - len(seen), ignore_eos=True).collect()
    assert (*seen, *rest.token_ids) == expected
    assert rest.usage.cached_tokens == 0
