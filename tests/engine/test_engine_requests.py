"""Parameters are honoured or refused with their numbers, before any station hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aeonflow.errors import AuthenticationError, LinkClosedError, PlanError
from host import Engine
from host.errors import ContextLengthError, InvalidRequestError, SessionBusyError, UnsupportedOptionError
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, LocalFleet, local_fleet


@pytest.fixture
async def engine(model: ModelFolder) -> AsyncIterator[Engine]:
    async with (
        local_fleet("layers:1", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):
        yield engine


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_p": 0}, "top_p 0"),
        ({"top_p": 1.01}, "top_p 1.01"),
        ({"top_k": -1}, "top_k -1"),
        ({"min_p": 2.0}, "min_p 2"),
        ({"seed": -1}, "seed -1"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"max_tokens": 2.5}, "max_tokens 2.5"),
        ({"prefill_chunk": 0}, "prefill_chunk 0"),
        ({"logprobs": -1}, "logprobs -1"),
        ({"stop": [""]}, "stop string ''"),
        ({"stop": ["a"] * 65}, "65 stop strings"),
    ],
)
async def test_parameters_outside_their_range_are_refused_by_name(
    options: dict[str, Any], named: str, engine: Engine
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        engine.generate("Hello", **options)


@pytest.mark.parametrize("prompt", ["", [], [{"role": "user", "content": ""}], 7, [512], [-1], [True], None])
async def test_prompts_that_are_none_are_refused(prompt: Any, engine: Engine) -> None:
    with pytest.raises(InvalidRequestError):
        engine.generate(prompt)


async def test_unknown_parameters_are_refused(engine: Engine) -> None:
    with pytest.raises(TypeError, match="best_of"):
        engine.generate("Hello", best_of=3)


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(model: ModelFolder, engine: Engine) -> None:
    context = model.card.context_length
    with pytest.raises(ContextLengthError, match=f"{context + 1} tokens.*{context}") as refused:
        engine.generate([3] * (context + 1))
    assert (refused.value.n_prompt_tokens, refused.value.context) == (context + 1, context)
    assert (await engine.generate([3] * 4, max_tokens=1).collect()).finish_reason


@pytest.mark.parametrize("as_messages", [False, True])
async def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    as_messages: bool, model: ModelFolder, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, context = engine.network.bundle.text.tokenizer, model.card.context_length
    longest = tokenizer.max_token_chars
    fits = "x" * (context * longest)

    def ask(text: str) -> object:
        return engine.generate([{"role": "user", "content": text}] if as_messages else text)

    with pytest.raises(ContextLengthError, match=r"has \d+ tokens"):  # counted: it might have fitted
        ask(fits)
    monkeypatch.setattr(tokenizer, "encode", lambda text: pytest.fail("it was encoded"))
    with pytest.raises(ContextLengthError, match=f"at least {context + 1} tokens.*{context}"):
        ask(fits + "x")


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"pair_x": "draft"}, UnsupportedOptionError, "pair_x draft"),
        ({"pair_x": "nonsense"}, InvalidRequestError, "pair_x 'nonsense'"),
        ({"speculate": "pairz"}, UnsupportedOptionError, "speculate pairz"),
        ({"speculate": "model"}, InvalidRequestError, "model:NAME"),
        ({"speculate": "nonsense"}, InvalidRequestError, "speculate 'nonsense'"),
        ({"volumes": True}, UnsupportedOptionError, "volumes on"),
        ({"kv": "f8"}, InvalidRequestError, "kv='f8'"),
        ({"route": "ring"}, InvalidRequestError, "route 'ring'"),
        ({"kernels": "slow"}, InvalidRequestError, "kernels 'slow'"),
        ({"transport": "carrier-pigeon", "plan": "trisplit"}, InvalidRequestError, "carrier-pigeon"),
        ({"transport": "picows"}, InvalidRequestError, "solo"),
        ({"threads": 0}, InvalidRequestError, "threads 0"),
        ({"link_delay_ms": -1, "plan": "trisplit"}, InvalidRequestError, "link_delay_ms -1"),
        ({"exact": True, "kernels": "reference"}, InvalidRequestError, "exact"),
        ({"plan": "quadsplit"}, PlanError, "quadsplit"),
        ({"plan": "layers:9"}, PlanError, "9"),
        ({"prefill_chunk": 0}, InvalidRequestError, "prefill_chunk 0"),
        ({"deadline_s": 0}, InvalidRequestError, "deadline_s 0"),
        ({"rejoin_s": -1.0}, InvalidRequestError, "rejoin_s -1"),
        ({"model": ""}, InvalidRequestError, "model"),
    ],
)
async def test_launch_refuses_what_it_cannot_honour_before_a_station_starts(
    options: dict[str, Any], error: type[Exception], named: str, model: ModelFolder
) -> None:
    keywords = {"model": str(model.path), "kernels": "reference", **options}
    with pytest.raises(error, match=named):
        async with Engine.launch(**keywords):
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_model_that_is_not_there_is_named() -> None:
    for plan in ("solo", "layers:2"):
        with pytest.raises(Exception, match="no-such-model"):
            async with Engine.launch(model="no-such-model", plan=plan, kernels="reference"):
                pass


async def test_connect_refuses_a_wrong_token_nobody_there_and_half_a_fleet(model: ModelFolder) -> None:
    async with local_fleet("layers:2", model) as fleet:
        with pytest.raises(AuthenticationError):
            await entered(fleet, token="wrong")
        with pytest.raises(InvalidRequestError, match="token"):
            await entered(fleet, token=None)
        with pytest.raises(PlanError, match="layers 0-1"):
            await entered(fleet, urls=fleet.urls[1:])
        with pytest.raises(InvalidRequestError, match="2 station addresses, 1"):
            await entered(fleet, urls=[fleet.urls[0], fleet.urls[0]])
        dead = fleet.urls
    with pytest.raises(LinkClosedError):
        await entered(fleet, urls=dead)


async def test_stations_of_different_models_are_refused_naming_both(
    model: ModelFolder, other_model: ModelFolder
) -> None:
    async with local_fleet("layers:2", model) as one, local_fleet("layers:2", other_model) as other:
        with pytest.raises(Exception, match=f"{model.card.fingerprint}.*{other_model.card.fingerprint}"):
            await entered(one, urls=[one.urls[0], other.urls[1]])


async def test_a_session_answers_one_prompt_at_a_time(engine: Engine) -> None:
    async with engine.session() as session:
        first = session.generate("Hello", max_tokens=50, ignore_eos=True)
        await anext(first)
        with pytest.raises(SessionBusyError):
            session.generate("Hello again")
        first.cancel()
        assert (
            await session.generate("Hello again", max_tokens=2, ignore_eos=True).collect()
        ).finish_reason == "length"


async def entered(fleet: LocalFleet, *, urls: list[str] | None = None, token: str | None = TOKEN) -> None:
    async with Engine.connect(urls or fleet.urls, token=token, transport="websockets"):
        pass
