"""Shadow seeds that fail on their way: tokens stay, what went wrong is counted, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from host import Engine
from stations.models.folder import ModelFolder
from tests.engine.local_stations import TOKEN, LocalFleet, local_fleet

from .conftest import MakeModel
from .tampering import OnTheLine

PROMPT = "The stations pass a token along, and the next takes it on."
COUNTED = {
    "doubled": "duplicate", "cut short": "corrupt", "of the wrong sign": "wrong_sign", "contradicted": "conflict",
}  # fmt: skip
FRAMES_LESS = {"lost": 1, "doubled": -1, "contradicted": -1}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "seed": 11}

pytestmark = pytest.mark.slow


async def answered(engine: Engine, **options: Any) -> tuple[tuple[int, ...], str | None]:
    result = await engine.generate(PROMPT, max_tokens=6, ignore_eos=True, logits_hash=True, **options).collect()
    return result.token_ids, result.logits_hash


def joined(fleet: LocalFleet, mode: str, **options: Any) -> Any:
    return Engine.connect(fleet.urls, token=TOKEN, transport="websockets", pair_x=mode, **options)


def lost(told: dict[str, Any]) -> int:
    """Seeds of line 145 that were sent and have not come."""
    counts = told["lines"]["145"]
    return int(counts["sent"] - counts["received"])


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> ModelFolder:
    return make_model("layers=4")


@pytest.mark.parametrize("seed", ["h", "x"])
@pytest.mark.parametrize("route", ["chain", "relay"])
async def test_shadow_seeds_that_fail_change_no_token_and_are_counted(
    route: str, seed: str, model: ModelFolder
) -> None:
    async with local_fleet("layers:1", model) as fleet, joined(fleet, "off") as engine:
        expected = await answered(engine), await answered(engine, **SAMPLED)
    async with (
        local_fleet("trisplit:per-layer", model) as fleet,
        joined(fleet, "shadow", route=route, pair_x_seed=seed) as engine,
    ):
        before = (await engine.status())["pair_x"]
        for fault in ("doubled", "damaged", "cut short", "of the wrong sign", "contradicted", "lost"):
            with OnTheLine(fleet, "attn-2", fault, always=True) as tampering:
                assert (await answered(engine), await answered(engine, **SAMPLED)) == expected
            told = (await engine.status())["pair_x"]
            for name in ("duplicate", "corrupt", "wrong_sign", "conflict"):
                failed = tampering.done if COUNTED.get(fault) == name else 0
                assert told[name] - before[name] == failed, (fault, name)
            assert told["slots"] == 0, "of sessions that are closed"
            assert lost(told) - lost(before) == FRAMES_LESS.get(fault, 0) * tampering.done
            assert tampering.done > 10
            before = told
        assert (await answered(engine), await answered(engine, **SAMPLED)) == expected
