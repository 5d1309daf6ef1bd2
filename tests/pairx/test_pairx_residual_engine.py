"""Engines over ladder and parallel models: every plan and route gives the tokens and logits of solo."""

from __future__ import annotations

import pytest

from aeonflow.errors import AeonflowError
from host import Engine
from tests.engine.local_stations import TOKEN, local_fleet

PROMPT = "The stations pass a token along, and the next takes it on."
CHANGES = "layers=6,residual={}"


async def run(model, plan: str, kernels: str, **options) -> tuple[str | None, tuple[int, ...]]:
    async with (
        local_fleet(plan, model, kernels) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", **options) as engine,
    ):
        result = await engine.generate(PROMPT, max_tokens=8, ignore_eos=True, logits_hash=True).collect()
        return result.logits_hash, result.token_ids


@pytest.mark.parametrize("residual", ["ladder", "parallel"])
async def test_plans_and_routes_give_the_logits_of_one_station(residual, make_model) -> None:
    model = make_model(CHANGES.format(residual))
    solo = await run(model, "layers:1", "fast")
    assert len(solo[1]) == 8
    for plan, route in (
        ("layers:3", "chain"), ("layers:3", "relay"), ("trisplit", "relay"), ("ffslice:4", "relay"),
        ("trisplit+shards=2", "chain"),
    ):  # fmt: skip
        assert await run(model, plan, "fast", route=route) == solo, (plan, route)


@pytest.mark.parametrize("mode", ["shadow", "bypass"])
async def test_other_modes_of_seeds_are_refused_by_name(mode, make_model) -> None:
    with pytest.raises(AeonflowError, match=f"pair_x {mode} with a ladder residual: off and live are possible"):
        await run(make_model(CHANGES.format("ladder")), "trisplit", "reference", pair_x=mode)
