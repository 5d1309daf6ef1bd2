"""The benches run and report what they say; how fast is never asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from host.bench import bench_decode, bench_hop, bench_wire
from host.bench.decode import Way, num_visits
from host.bench.measure import machine, spread
from host.bench.side_by_side import Child, compare
from host.cli.bench_words import show_hop, show_wire


def test_a_spread_has_median_and_quantiles_of_its_values() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == {"median": 3.0, "p10": 1.0, "p90": 5.0, "count": 5}
    assert spread([7.0]) == {"median": 7.0, "p10": 7.0, "p90": 7.0, "count": 1}


def test_the_machine_is_named() -> None:
    found = machine()
    assert found["cores"] >= 1
    assert found["python"].startswith("3.")


async def test_wire_reports_rates_and_how_many_frames_shared_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    result = await bench_wire(payloads=(64,), libraries=("websockets",), runs=1, run_s=0.002, link_delay_ms=1.0)
    codec, batcher = result["codec"]["64"], result["batcher"]["websockets"]["64"]
    assert codec.keys() == {"pack_frames_s", "header_frames_s", "decode_frames_s", "batch_frames_s"}
    assert all(rate["median"] > 0 for rate in codec.values())
    assert batcher["off_frames_s"]["median"] > 0
    assert 8 < batcher["frames_per_message"] <= 16
    assert result["link_delay"]["websockets"]["obtained_ms"] >= 1.0
    assert result["failed"] == []
    json.dumps(result)
    show_wire(result)
    assert capsys.readouterr().out.count("websockets") == 2


async def test_wire_names_what_reached_its_limit_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.bench.wire.RUN_TIMEOUT_S", 0.0001)
    result = await bench_wire(payloads=(64,), libraries=("websockets",), runs=1, run_s=0.002)
    assert result["codec"]["64"]["pack_frames_s"]["median"] > 0
    (failed,) = result["failed"]
    assert failed.startswith("websockets, frames of 64 bytes: ")
    assert "0.0001 s" in failed


async def test_hop_over_delayed_links_holds_a_token_against_the_delays_it_obtained(tiny_model: Path) -> None:
    result = await bench_hop(libraries=("websockets",), model=str(tiny_model), kernels="reference", link_delay_ms=2.0)
    chain, relay = result["libraries"]["websockets"]
    assert (chain["route"], relay["route"]) == ("chain", "relay")
    assert (chain["hops"], relay["hops"]) == (15, 28)
    for measured in (chain, relay):
        assert measured["obtained_ms"] >= measured["asked_ms"] == 2.0
        floor_ms = measured["hops"] * measured["obtained_ms"] + measured["compute_ms"]
        assert measured["floor_ms"] == pytest.approx(floor_ms, rel=0.01)
        assert measured["ratio"] == pytest.approx(measured["token_ms"] / floor_ms, rel=0.01)
        assert measured["token_ms"] > measured["hops"] * 2.0


@pytest.mark.parametrize("library", ["websockets", pytest.param("picows", marks=pytest.mark.slow)])
async def test_hop_measures_an_echo_a_link_and_a_chain_over_the_same_library(
    tiny_model: Path, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = await bench_hop(libraries=(library,), runs=1, model=str(tiny_model), kernels="reference")
    measured = result["libraries"][library]
    assert measured["hops_per_token"] == 15
    assert measured["half_echo_us"]["median"] > 0
    assert measured["link_hop_us"]["median"] > 0
    json.dumps(result)
    show_hop(result)
    assert capsys.readouterr().out.splitlines()[-1].startswith(library)


async def test_decode_visits_every_way_and_compares_their_hashes(tiny_model: Path) -> None:
    ways = (Way("solo", kernels="reference"), Way("layers:2", kernels="reference"))
    told: list[int] = []
    asked: dict[str, Any] = {"model": str(tiny_model), "prompt_tokens": 12, "new_tokens": 5, "runs": 2}
    result = await bench_decode(ways, **asked, progress=told.append)
    assert told == list(range(1, num_visits(len(ways), 2) + 1))
    assert [row["plan"] for row in result["ways"]] == ["solo", "layers:2"]
    assert [row["hops"] for row in result["ways"]] == [0, 3]
    assert all(row["spread"]["decode_tok_s"]["count"] == 2 for row in result["ways"])
    assert all(row["decode_tok_s"] > 0 and row["prefill_tok_s"] > 0 and row["ttft_s"] > 0 for row in result["ways"])
    assert all(len(row["logits_hash"]) == 64 for row in result["ways"])
    assert result["exact_hashes_agree"]
    json.dumps(result)


async def test_decode_of_one_way_says_where_the_time_of_its_tokens_goes(tiny_model: Path) -> None:
    way = Way("trisplit", kernels="reference")
    result = await bench_decode((way,), model=str(tiny_model), prompt_tokens=12, new_tokens=5, sessions=3, runs=1)
    layers, tokens = 4, 3 * 4
    assert set(result["per_role"]) == {"embed", "attn", "gate_up", "down", "head"}
    assert result["per_role"]["attn"]["rows"] == layers * tokens
    assert 0 < result["per_role"]["attn"]["calls"] <= layers * tokens
    assert all(one["compute_s"] > 0 and one["queue_s"] >= 0 for one in result["per_role"].values())
    assert result["hops"] == 3 * layers + 3
    assert result["bottleneck"] in {*result["per_role"], "wire", "host"}
    assert result["bottleneck_text"]
    assert result["total_tok_s"] > 0
    json.dumps(result)


def test_side_by_side_asks_both_in_turn_and_compares_their_rates() -> None:
    answers = """
import json, sys
speed = json.loads(sys.stdin.readline())["speed"]
print(json.dumps({"version": "1"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({
        "prefill_s": len(asked["prompt"]) / speed, "decode_s": 1 / speed, "prefill_cpu_s": 1.0, "decode_cpu_s": 2.0,
        "token_ids": list(range(asked["new_tokens"])), "peak_rss_bytes": 1000,
    }), flush=True)
"""
    command = [sys.executable, "-c", answers]
    with Child(command, {"speed": 8.0}) as ours, Child(command, {"speed": 2.0}) as theirs:
        found = compare(ours, theirs, [1, 2, 3, 4], 5, runs=2)
    assert found["ours"]["prefill_tok_s"]["median"] == 8.0
    assert found["theirs"]["decode_tok_s"]["median"] == 8.0
    assert found["decode_ratio"] == {"median": 4.0, "p10": 4.0, "p90": 4.0, "count": 2}
    assert (found["decode_cpu_ratio"], found["memory_ratio"], found["equal_tokens"]) == (1.0, 1.0, 5)


def test_a_child_that_ends_before_it_answers_is_named_with_its_status() -> None:
    with pytest.raises(RuntimeError, match="status 3"), Child([sys.executable, "-c", "raise SystemExit(3)"], {}):
        raise AssertionError("it must not start")
