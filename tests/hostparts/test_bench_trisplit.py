"""`bench trisplit`: what it makes of a trace, what the formula says, and real cells on a small model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from aeonflow import bands
from aeonflow.messages import TraceEvent
from aeonflow.tensors import Kind, Port
from aeonflow.trace import What
from host.bench.prompts import BenchPrompt
from host.bench.trisplit import TRACE_APART_MS, Cell, known_options, measure_cell
from host.bench.trisplit_files import write_cell
from host.bench.trisplit_formula import Formula
from host.bench.trisplit_passes import draft_trips, overlap_saves, passes_of
from host.bench.trisplit_report import quantiles
from host.bench.trisplit_timeline import ROLES, timeline_of
from host.engine import Engine
from host.errors import HostError, UnsupportedOptionError
from host.trace import Recording, Track

PROMPT = BenchPrompt("hello", "Hello, who are you?")
LIMIT_S = 60.0
MS = 1e-3


def wait(first: int, began_ms: float, ended_ms: float) -> TraceEvent:
    return TraceEvent(int(What.WAIT), began_ms * MS, ended_ms * MS, 0, 0, 0, 7, 1, first, 1)


def compute(stream: int, layer: int, began_ms: float, ended_ms: float, **more: int) -> TraceEvent:
    given = {"session": 7, "epoch": 1, "first": 9, "rows": 1, "queued_s": began_ms * MS} | more
    return TraceEvent(int(What.COMPUTE), began_ms * MS, ended_ms * MS, stream, layer, layer, **given)  # type: ignore[arg-type]


def recording(host: Sequence[TraceEvent], *stations: Sequence[TraceEvent]) -> Recording:
    tracks = [Track(f"s{i}", tuple(events)) for i, events in enumerate(stations)]
    return Recording((Track("host", tuple(host)), *tracks), 0.0, 1.0)


ONE_LAYER = (
    compute(bands.EMBED, 0, 10, 11),
    compute(bands.ATTN, 0, 21, 23),
    compute(bands.GATE_UP, 0, 33, 36),
    compute(bands.DOWN, 0, 46, 48),
    compute(bands.HEAD, 0, 58, 63),
)


def test_the_hops_of_a_pass_add_up_to_the_pass() -> None:
    (one,) = passes_of(recording([wait(9, 0, 73)], ONE_LAYER), lambda event: True)
    hops = list(one.hops)
    assert [hop.role for hop in hops] == ["embed", "attn", "gate_up", "down", "head", "host"]
    assert [round(hop.seconds / MS) for hop in hops] == [11, 12, 13, 12, 15, 10]
    assert sum(hop.seconds for hop in hops) == pytest.approx(one.seconds)
    assert [(layer, round(seconds / MS)) for layer, seconds in one.layers] == [(0, 37)]


def test_parts_of_a_stage_are_one_stage_that_ends_with_the_last() -> None:
    slices = (compute(bands.FFN, 0, 33, 36, part=0), compute(bands.FFN, 0, 34, 40, part=1))
    events = [*ONE_LAYER[:2], *slices, ONE_LAYER[4]]
    (one,) = passes_of(recording([wait(9, 0, 73)], events), lambda event: True)
    ffn = next(hop for hop in one.hops if hop.role == "ffn")
    assert round(ffn.seconds / MS) == 17
    assert ffn.compute_s == pytest.approx(6 * MS)


def test_stages_that_overlap_give_the_hops_of_the_longest_path() -> None:
    """A ladder of two layers: attention of the second starts beside DOWN of the first."""
    events = [
        *ONE_LAYER[:3],
        compute(bands.ATTN, 1, 44, 46),
        compute(bands.DOWN, 0, 46, 48),
        compute(bands.GATE_UP, 1, 58, 60),
        compute(bands.DOWN, 1, 70, 72),
        compute(bands.HEAD, 0, 82, 84),
    ]
    (one,) = passes_of(recording([wait(9, 0, 94)], events), lambda event: True)
    hops = list(one.hops)
    assert [hop.role for hop in hops] == ["embed", "attn", "gate_up", "down", "gate_up", "down", "head", "host"]
    assert [round(hop.seconds / MS) for hop in hops] == [11, 12, 13, 12, 12, 12, 12, 10]
    assert sum(hop.seconds for hop in hops) == pytest.approx(one.seconds)


def test_a_pass_of_which_a_station_lost_events_is_left_out() -> None:
    later = [compute(e.stream, e.layer, e.began_s / MS + 100, e.ended_s / MS + 100, first=10) for e in ONE_LAYER]
    found = passes_of(recording([wait(9, 0, 73), wait(10, 100, 173)], ONE_LAYER, later[:3] + later[4:]), lambda e: True)
    assert [one.first for one in found] == [9]


def test_overlap_is_a_wait_on_a_plain_chain_and_a_gain_where_a_draft_ran_ahead() -> None:
    down, attn = compute(bands.DOWN, 0, 46, 48), compute(bands.ATTN, 1, 58, 60)
    draft = compute(bands.ATTN, 1, 35, 37, kind=int(Kind.DRAFT))
    plain = overlap_saves(recording([wait(9, 0, 73)], [down], [attn]), lambda event: True)
    ahead = overlap_saves(recording([wait(9, 0, 73)], [down], [attn, draft]), lambda event: True)
    assert [round(seconds / MS) for seconds in plain] == [-10]
    assert [round(seconds / MS) for seconds in ahead] == [13]


def test_quantiles_are_of_nearest_rank_and_nothing_has_none() -> None:
    assert quantiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p95": 3.0, "best": 1.0, "count": 3}
    assert quantiles([]) is None


def test_the_formula_gives_the_designs_seconds_at_20_ms() -> None:
    layers, hop_s, compute_s = 60, 0.020, 60 * 0.0003
    common = {"hop_s": hop_s, "compute_s": compute_s, "num_layers": layers}
    chain = Formula.of(hops=3 * layers, tokens_per_pass=1.0, drafts=None, **common)  # type: ignore[arg-type]
    drafted = Formula.of(hops=3 * layers, tokens_per_pass=1.0, drafts=(100, 83), **common)  # type: ignore[arg-type]
    looked_up = Formula.of(hops=3 * layers, tokens_per_pass=2.7, drafts=None, **common)  # type: ignore[arg-type]
    assert chain.token_s == pytest.approx(3.62, abs=0.03)
    assert drafted.token_s == pytest.approx(2.69, abs=0.05)
    assert looked_up.token_s == pytest.approx(1.34, abs=0.01)


def test_a_draft_by_relay_gains_what_it_gains_on_a_chain() -> None:
    gains = []
    for hops, is_relay in ((93, False), (184, True)):
        common = {"hops": hops, "hop_s": 0.02, "compute_s": 0.0, "tokens_per_pass": 1.0, "num_layers": 30}
        gains.append(Formula.of(**common, drafts=(100, 83), is_relay=is_relay).drafting)  # type: ignore[arg-type]
    assert gains == pytest.approx([1 - 0.83 * (1 - 65 / 93), 1 - 0.83 * (1 - 128 / 184)])
    assert gains[0] == pytest.approx(gains[1], rel=0.005)


def test_a_guess_comes_with_the_last_message_of_a_drafts_head_though_all_of_it_comes_by_on_a_relay() -> None:
    def came(stream: int, at_ms: float, first: int = 9, kind: Kind = Kind.DRAFT) -> TraceEvent:
        event = compute(stream, 0, at_ms, at_ms, first=first, kind=int(kind))
        return msgspec.structs.replace(event, what=int(What.RECEIVE))

    x, answer = came(bands.HEAD, 50), came(bands.HEAD, 60)
    seeds = came(bands.seed_stream(1, 0), 20), came(bands.DOWN, 40)
    others = came(bands.HEAD, 70, kind=Kind.CANONICAL), came(bands.HEAD, 90, first=11)
    trips = draft_trips(recording([wait(9, 0, 73), *seeds, x, answer, *others]), lambda event: True)
    assert [round(seconds / MS) for seconds in trips] == [60]


def test_an_option_that_the_engine_does_not_know_is_refused_unless_it_is_off() -> None:
    def launch(*, model: str, route: str = "chain") -> None: ...

    assert known_options(launch, {"route": "relay", "warp": "off", "deep": None}) == {"route": "relay"}
    with pytest.raises(UnsupportedOptionError, match="warp 'on'"):
        known_options(launch, {"warp": "on"})


async def test_a_cell_tells_hops_layers_tokens_and_what_the_formula_says(tiny_model: Path, tmp_path: Path) -> None:
    delay_s = 1e-3 * TRACE_APART_MS  # the run that is timed is the traced one: what is in one is in the other
    cell = Cell(kernels="reference", link_delay_ms=TRACE_APART_MS, new_tokens=5)
    came: list[int] = []
    measured = await measure_cell(cell, model=str(tiny_model), prompt=PROMPT, limit_s=LIMIT_S, on_token=came.append)
    report = measured.report
    async with Engine.launch(model=str(tiny_model), kernels="reference") as solo:
        plain = await solo.generate(PROMPT.text, max_tokens=5, ignore_eos=True).collect()
    layers = 4
    assert report["token_ids"] == list(plain.token_ids)
    assert came[-1] == 5
    assert report["hops_per_token"] == report["formula"]["hops"] == 3 * layers + 3
    assert not report["traced_apart"]
    assert report["obtained_delay_s"] >= delay_s
    assert report["token_s"] >= report["wire_floor_s"] > 15 * delay_s
    assert report["hop_s"]["attn"]["count"] == layers * 4
    assert report["hop_s"]["all"]["count"] == 15 * 4
    assert len(report["layer_s"]["by_layer"]) == layers
    assert report["overlap_save_s"]["best"] < 0
    assert report["frames_per_token"] == 4 * layers + 3  # h goes beside n
    assert report["frames_per_message"] >= 0.9
    assert report["acceptance"] is None
    assert report["formula_ratio"] > 0.9
    formula = report["formula"]
    assert formula["hop_s"] == report["obtained_delay_s"]
    assert formula["compute_s"] > 0
    assert formula["token_s"] == pytest.approx(15 * formula["hop_s"] + formula["compute_s"], abs=2e-6)
    assert report["formula_ratio"] == pytest.approx(report["token_s"] / formula["token_s"], abs=1e-3)
    written, problem = write_cell(measured, tmp_path / "out")
    assert {"cell.json", "timeline.html", "trace.json"} <= {path.name for path in written}
    assert json.loads((tmp_path / "out" / "cell.json").read_text()) == report
    pytest.importorskip("matplotlib", reason="extra `plots`")
    assert problem == ""
    assert (tmp_path / "out" / "timeline.png").read_bytes().startswith(b"\x89PNG")


async def test_a_timeline_has_a_box_a_call_and_a_line_a_message(tiny_model: Path) -> None:
    cell = Cell(kernels="reference", route="relay", new_tokens=3)
    measured = await measure_cell(cell, model=str(tiny_model), prompt=PROMPT, limit_s=LIMIT_S)
    timeline = timeline_of(measured.recording, measured.prompt_tokens, 1)
    calls, layers = [box for box in timeline.boxes if ROLES[box.role] != "host"], 4
    assert measured.report["traced_apart"]
    assert timeline.lanes[0].name == "host"
    assert len(calls) == 3 * layers + 2
    assert len(timeline.lines) == 2 * (3 * layers + 2)
    assert {line.port for line in timeline.lines} >= {Port.IDS.name.lower(), Port.LOGITS.name.lower()}
    assert all(0 <= box.at_us <= timeline.end_us for box in calls)


async def test_a_cell_that_takes_longer_than_its_limit_says_how_far_it_came(tiny_model: Path) -> None:
    cell = Cell(kernels="reference", link_delay_ms=200.0, new_tokens=50)
    with pytest.raises(HostError, match=r"within 2 s: 0 of 50 tokens came"):
        await measure_cell(cell, model=str(tiny_model), prompt=PROMPT, limit_s=2.0)
