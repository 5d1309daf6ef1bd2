from __future__ import annotations

import json
from pathlib import Path

import pytest

from host import Engine
from host.plan import Geometry, make_plan, plan_cost, weights_from_manifest


@pytest.mark.parametrize(
    ("plan", "route"),
    [("solo", "chain"), ("layers:2", "chain"), ("trisplit", "chain"), ("trisplit", "relay"),
     ("trisplit+embed-shards=2+head-shards=3", "chain"), ("layers:2+shards=2", "relay")],
)  # fmt: skip
async def test_predicted_hops_and_bytes_are_those_a_running_fleet_counts(
    tiny_model: Path, plan: str, route: str
) -> None:
    geometry = Geometry.from_card(json.loads((tiny_model / "card.json").read_bytes()))
    weights = weights_from_manifest(json.loads((tiny_model / "manifest.json").read_bytes()), geometry.num_layers)
    predicted = plan_cost(make_plan(plan, geometry.num_layers), geometry, weights, route=route)
    async with Engine.launch(model=str(tiny_model), plan=plan, route=route, kernels="reference") as engine:
        result = await engine.generate("Hello", raw=True, max_tokens=3, ignore_eos=True).collect()
    assert result.hops_per_token == predicted.hops_per_token
    assert result.bytes_per_token == predicted.bytes_per_token
