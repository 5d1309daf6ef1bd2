"""A small model in the host: its guesses change no token, its session follows the text, its tokenizer is the same."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from kvrun.fleets import PROMPT, engine_on

from aeonflow.messages import Close
from host import Engine
from host.errors import InvalidRequestError
from host.request import Request
from host.speculate.model import DraftModel, ModelProposer
from stations.models.folder import ModelFolder
from stations.models.synthetic import build_synthetic

from .means import EagerSizer
from .test_speculate_engine import SAMPLING, answer, seen

WAIT_S = 30.0
SMALL = "synthetic:layers=2,hidden=64,heads=4,kv_heads=2,ffn=256,vocab={vocab},context=256,seed=8"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model with the same tokenizer, that says something else, over a shorter context."""
    folder = tmp_path_factory.mktemp("models") / "other"
    build_synthetic(SMALL.format(vocab=512), folder)
    return folder


def eager(engine: Engine) -> DraftModel:
    engine.drafters.times.num_plain = 99
    engine.drafters.new_sizer = lambda: EagerSizer(random.Random(4))  # type: ignore[method-assign]
    drafts = engine.drafters.model
    assert drafts is not None
    open_at_once = drafts.open

    async def open_read(request: Request) -> ModelProposer | None:
        """The small model has read the prompt before the large one begins, whichever of them gets a core first."""
        proposer = await open_at_once(request)
        async with asyncio.timeout(WAIT_S):
            while proposer is not None and not proposer._is_broken and proposer._sequence.oldest_in_flight is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        return proposer

    drafts.open = open_read  # type: ignore[method-assign]
    return drafts


@pytest.mark.parametrize("sampling", SAMPLING)
async def test_a_model_that_guesses_for_itself_is_always_right(sampling: str, model: ModelFolder) -> None:
    async with (
        engine_on("layers:2", model) as plain,
        engine_on("layers:2", model, speculate=f"model:{model.path}") as engine,
    ):
        drafts = eager(engine)
        for prompt in (PROMPT, PROMPT[:20]):
            expected = await answer(plain, prompt, **SAMPLING[sampling])
            found = await answer(engine, prompt, **SAMPLING[sampling])
            assert seen(found) == seen(expected)
            assert found.speculation["acceptance"] == 1.0
            assert found.speculation["tokens_per_pass"] > 2
        assert len(drafts._idle) == 1, "the session serves one generation after the other"


async def test_a_model_that_is_mostly_wrong_changes_nothing(model: ModelFolder, other: Path) -> None:
    async with (
        engine_on("layers:2", model) as plain,
        engine_on("layers:2", model, speculate=f"model:{other}") as engine,
    ):
        eager(engine)
        for length in (150, 20, 240):  # the last one outgrows the small model's context
            prompt = (PROMPT * 2)[:length]
            expected = await answer(plain, prompt)
            found = await answer(engine, prompt)
            assert seen(found) == seen(expected)
            assert found.speculation["drafted"] > 0


async def test_turns_of_a_conversation_find_the_small_model_s_rows(model: ModelFolder) -> None:
    async with engine_on("layers:2", model, speculate=f"model:{model.path}") as engine:
        drafts = eager(engine)
        async with engine.session() as session:
            options: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
            first = await session.generate(PROMPT, **options).collect()
            (kept,) = drafts._idle
            epoch, held = kept.epoch, kept.length
            assert held >= len(PROMPT)
            await session.generate([*PROMPT, *first.token_ids, 5], **options).collect()
            assert drafts._idle == [kept]
            assert kept.length > held
            assert kept.epoch >= epoch


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_session_that_the_small_model_s_station_has_forgotten_is_not_used_for_ever(
    is_known: bool, model: ModelFolder
) -> None:
    async with engine_on("layers:2", model, speculate=f"model:{model.path}") as engine:
        drafts = eager(engine)
        await answer(engine, PROMPT)
        (kept,) = drafts._idle
        network = drafts._engine.network
        if is_known:
            kept.progress_s -= network.idle_s
        else:
            for station in network.stations:
                station.tell(Close(kept.session))
        found = [await answer(engine, PROMPT) for _ in range(2)]
        assert kept.is_closed
        assert (found[0].speculation["drafted"] > 0) is is_known
        assert found[1].speculation["drafted"] > 0


async def test_a_cancelled_answer_leaves_the_small_model_free(model: ModelFolder) -> None:
    async with engine_on("layers:2", model, speculate=f"model:{model.path}") as engine:
        drafts = eager(engine)
        generation = engine.generate(PROMPT, max_tokens=200, ignore_eos=True)
        for _ in range(9):
            await anext(generation)
        generation.cancel()
        assert [one.is_tidy for one in drafts._idle] == [True]
        again = await answer(engine, PROMPT)
        assert again.speculation["acceptance"] == 1.0


async def test_another_tokenizer_is_refused_by_name(model: ModelFolder, tmp_path: Path) -> None:
    build_synthetic(SMALL.format(vocab=400), tmp_path / "narrow")
    with pytest.raises(InvalidRequestError, match=r"its tokenizer is not that of .*: 400 tokens, 512 there"):
        async with engine_on("layers:2", model, speculate=f"model:{tmp_path / 'narrow'}"):
            pass
