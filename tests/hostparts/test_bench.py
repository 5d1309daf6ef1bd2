"""The benches run and report what they say; how fast is never asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.bench import bench_decode, bench_hop, bench_wire
from host.bench.decode import Way
from host.bench.measure import machine, spread


def test_a_spread_has_median_and_quantiles_of_its_values() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == {"median": 3.0, "p10": 1.0, "p90": 5.0, "count": 5}
    assert spread([7.0]) == {"median": 7.0, "p10": 7.0, "p90": 7.0, "count": 1}


def test_the_machine_is_named() -> None:
    found = machine()
    assert found["cores"] >= 1
    assert found["python"].startswith("3.")


async def test_wire_reports_rates_and_how_many_frames_shared_a_message() -> None:
    result = await bench_wire(payloads=(64,), libraries=("websockets",), runs=1, run_s=0.002, link_delay_ms=1.0)
    codec, batcher = result["codec"]["64"], result["batcher"]["websockets"]["64"]
    assert codec.keys() == {"pack_frames_s", "header_frames_s", "decode_frames_s", "batch_frames_s"}
    assert all(rate["median"] > 0 for rate in codec.values())
    assert batcher["off_frames_s"]["median"] > 0
    assert 8 < batcher["frames_per_message"] <= 16
    assert result["link_delay"]["websockets"]["obtained_ms"] >= 1.0
    json.dumps(result)


@pytest.mark.parametrize("library", ["websockets", "picows"])
async def test_hop_measures_an_echo_a_link_and_a_chain_over_the_same_library(tiny_model: Path, library: str) -> None:
    result = await bench_hop(libraries=(library,), runs=1, model=str(tiny_model), kernels="reference")
    measured = result["libraries"][library]
    assert measured["hops_per_token"] == 15
    assert measured["half_echo_us"]["median"] > 0
    assert measured["link_hop_us"]["median"] > 0
    json.dumps(result)


async def test_decode_visits_every_way_and_compares_their_hashes(tiny_model: Path) -> None:
    ways = (Way("solo", kernels="reference"), Way("layers:2", kernels="reference"))
    result = await bench_decode(ways, model=str(tiny_model), prompt_tokens=12, new_tokens=5, runs=2)
    assert [row["plan"] for row in result["ways"]] == ["solo", "layers:2"]
    assert [row["hops_per_token"] for row in result["ways"]] == [0, 3]
    assert all(row["decode_tok_s"]["count"] == 2 for row in result["ways"])
    assert all(len(row["logits_hash"]) == 64 for row in result["ways"])
    assert result["exact_hashes_agree"]
    json.dumps(result)
