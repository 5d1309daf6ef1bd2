"""A station lost while rows are guessed: the clear error of any answer, and the next request is right."""

from __future__ import annotations

import pytest
from engine.local_stations import TINY, TOKEN, local_fleet

from aeonflow.errors import PoisonedError, StationLostError
from host import Engine
from stations.models.folder import ModelFolder
from stations.models.synthetic import build_synthetic

from .means import AlwaysDrafts
from .test_speculate_engine import guess_eagerly, seen

OPTIONS = {"max_tokens": 40, "ignore_eos": True, "logits_hash": True}
PROMPT = [(11 * i + 3) % 512 for i in range(40)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return build_synthetic(TINY, tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize("how", ["lookup", "draft"])
async def test_a_station_killed_while_rows_are_guessed_is_named_and_the_next_answer_is_right(
    how: str, small: ModelFolder
) -> None:
    mode = {"pair_x": "draft"} if how == "draft" else {"speculate": "lookup"}
    async with local_fleet("trisplit", small) as fleet:
        async with Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as plain:
            expected = await plain.generate(PROMPT, **OPTIONS).collect()
        async with Engine.connect(fleet.urls, token=TOKEN, transport="websockets", **mode) as engine:
            if how == "draft":
                engine.drafters.drafts = AlwaysDrafts()
            else:
                guess_eagerly(engine, [*PROMPT, *expected.token_ids], wrong=0.3)
            generation = engine.generate(PROMPT, max_tokens=400, ignore_eos=True)
            for _ in range(9):
                await anext(generation)
            station = fleet.station("gate_up")
            await station.stop()
            with pytest.raises(StationLostError, match="gate_up"):
                await generation.collect()
            await station.start()
            again = await engine.generate(PROMPT, **OPTIONS).collect()
            assert seen(again) == seen(expected)
            assert again.speculation["drafted"] > 5
            await fleet.until(lambda stations: not any(stations.sessions()))


async def test_a_poisoned_session_is_mended_by_a_new_epoch_while_rows_are_guessed(small: ModelFolder) -> None:
    async with (
        local_fleet("layers:2", small) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", speculate="lookup") as engine,
    ):
        engine.drafters.mode = engine.drafters.mode._replace(kind="off")
        expected = await engine.generate(PROMPT, **OPTIONS).collect()
        engine.drafters.mode = engine.drafters.mode._replace(kind="lookup")
        guess_eagerly(engine, [*PROMPT, *expected.token_ids], wrong=0.3)
        generation = engine.generate(PROMPT, **OPTIONS)
        for count in range(40):
            await anext(generation)
            if count in (5, 20):
                (sequence,) = engine.network.sequences.values()
                if sequence.oldest_in_flight is not None:
                    sequence.failed(PoisonedError("two different contributions"))
        result = await generation.collect()
        assert seen(result) == seen(expected)
        assert result.speculation["errors"] > 0
