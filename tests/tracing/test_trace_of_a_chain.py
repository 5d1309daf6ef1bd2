"""A trace of real stations: what is in it, and that it is what viewers of the Trace Event Format read."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine.local_stations import TOKEN, LocalFleet, local_fleet, tiny_model

from aeonflow import bands
from aeonflow.errors import BadMessageError
from aeonflow.frames import Flags
from aeonflow.messages import GetTrace, StartTrace, TraceRequest, encode
from aeonflow.tensors import Port
from aeonflow.trace import What
from host.engine import Engine
from host.errors import InvalidRequestError
from host.trace import Recording, Tracing, break_down, chrome_trace
from stations.models.folder import ModelFolder

LAYERS = 4
PROMPT = (5, 6, 7)
TOKENS = 4
LANES = {"wait", "sample", "receive", "queue", "compute", "send"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@asynccontextmanager
async def engine_over(plan: str, model: ModelFolder, **options: Any) -> AsyncIterator[tuple[Engine, LocalFleet]]:
    async with (
        local_fleet(plan, model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", **options) as engine,
    ):
        yield engine, fleet


async def recorded(engine: Engine, sessions: int = 1) -> Recording:
    tracing = Tracing(engine.network, time.perf_counter)
    await tracing.start()
    generations = [engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True) for _ in range(sessions)]
    for generation in generations:
        await generation.collect()
    return await tracing.collect()


def check_format(trace: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Every event has what its phase needs, lanes are named, spans of a lane do not cross; the spans by lane."""
    trace = json.loads(json.dumps(trace))
    processes: dict[int, str] = {}
    lanes: dict[tuple[int, int], str] = {}
    spans: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "ts"} <= event.keys()
        where = (event["pid"], event["tid"])
        match event["ph"]:
            case "M" if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            case "M" if event["name"] == "thread_name":
                lanes[where] = event["args"]["name"]
            case "M":
                assert event["name"] in ("process_sort_index", "process_labels", "thread_sort_index")
            case "X":
                assert event["dur"] >= 0
                spans[where].append(event)
            case phase:
                assert phase in ("s", "f")
                flows[event["id"]].append(event)
    assert spans.keys() == lanes.keys()
    assert {pid for pid, _ in spans} <= processes.keys()
    for where, own in spans.items():
        kind = lanes[where].split(" ")[0]
        assert kind in LANES
        assert {span["cat"] for span in own} == {kind}
        for before, after in itertools.pairwise(own):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
    for start, end in flows.values():
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        for at, cat in ((start, "send"), (end, "receive")):
            around = [s for s in spans[at["pid"], at["tid"]] if s["ts"] <= at["ts"] <= s["ts"] + s["dur"]]
            assert cat in {span["cat"] for span in around}
    return spans


def computed(recording: Recording) -> Counter[tuple[str, int, int]]:
    """How often each (role, layer, position of the first row) was computed."""
    spans = check_format(chrome_trace(recording))
    return Counter(
        (span["args"]["role"], span["args"]["layer"], one["first"])
        for own in spans.values()
        for span in own
        if span["cat"] == "compute"
        for one in span["args"]["passes"]
    )


async def test_every_role_and_layer_of_a_chain_is_there_once_a_token(model: ModelFolder) -> None:
    async with engine_over("trisplit", model) as (engine, _):
        recording = await recorded(engine)
    found = computed(recording)
    decoded = range(len(PROMPT), len(PROMPT) + TOKENS - 1)
    expected = {(role, layer, at) for role in ("attn", "gate_up", "down") for layer in range(LAYERS) for at in decoded}
    expected |= {(role, 0, at) for role in ("embed", "head") for at in decoded}
    assert {key: count for key, count in found.items() if key[2] in decoded} == dict.fromkeys(expected, 1)


async def test_every_message_of_a_chain_is_seen_at_both_ends_in_order(model: ModelFolder) -> None:
    async with engine_over("trisplit", model) as (engine, _):
        recording = await recorded(engine)
    events = [event for track in recording.tracks for event in track.events]
    messages = list(recording.messages())
    assert len(messages) == sum(event.what == What.SEND for event in events)
    assert len(messages) == sum(event.what == What.RECEIVE for event in events)
    # The stations of this test share the host's clock: nothing arrives before it was begun to be sent.
    assert all(message.sent.began_s <= message.received.began_s for message in messages)
    assert all(message.sent.num_bytes == message.received.num_bytes for message in messages)


async def test_fan_out_to_slices_and_fan_in_from_them_are_shown_at_both_ends(model: ModelFolder) -> None:
    async with engine_over("ffslice:2", model) as (engine, _):
        recording = await recorded(engine)
    expected = {Port.N: Flags.FIN | Flags.FORK, Port.F: Flags.FIN | Flags.FOLD, Port.H: Flags.FIN}
    messages = list(recording.messages())
    for port, flags in expected.items():
        assert {one.sent.flags for one in messages if one.sent.port == port} == {flags}
        assert {one.received.flags for one in messages if one.received.port == port} == {flags}
    spans = [span for own in check_format(chrome_trace(recording)).values() for span in own]
    shown = Counter(span["args"]["flags"] for span in spans if "flags" in span["args"])
    num_rows = Counter(one.sent.flags for one in messages)
    assert shown == {"FORK": 2 * num_rows[expected[Port.N]], "FOLD": 2 * num_rows[expected[Port.F]]}


@pytest.mark.parametrize(("plan", "route"), [("trisplit", "relay"), ("layers:2", "chain")])
async def test_a_trace_of_any_route_is_well_formed_and_complete(model: ModelFolder, plan: str, route: str) -> None:
    async with engine_over(plan, model, route=route) as (engine, _):
        recording = await recorded(engine)
    found = computed(recording)
    assert set(found.values()) == {1}
    assert {at for _, _, at in found} >= set(range(len(PROMPT), len(PROMPT) + TOKENS - 1))
    assert recording.tracks[0].name == "host"
    assert not any(track.problem or track.dropped for track in recording.tracks)


async def test_several_sessions_at_once_are_told_apart(model: ModelFolder) -> None:
    async with engine_over("trisplit", model) as (engine, _):
        recording = await recorded(engine, sessions=3)
    found = computed(recording)
    decoded = {key: count for key, count in found.items() if key[2] >= len(PROMPT)}
    assert set(decoded.values()) == {3}


async def test_nothing_is_recorded_when_nobody_asked_and_after_the_end(model: ModelFolder) -> None:
    async with engine_over("trisplit", model) as (engine, fleet):
        assert all(station.core.trace is None for station in fleet.stations)
        await engine.generate(PROMPT, max_tokens=2).collect()
        assert all(station.core.queue.clock is None for station in fleet.stations)
        recording = await recorded(engine)
        assert recording.tracks[1].events
        assert all(station.core.trace is None and station.core.queue.clock is None for station in fleet.stations)
        assert all(station.trace is None for station in engine.network.stations)


async def test_a_trace_ends_with_the_link_that_asked_for_it(model: ModelFolder) -> None:
    async with local_fleet("layers:2", model) as fleet:
        async with Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine:
            await Tracing(engine.network, time.perf_counter).start()
            assert all(station.core.trace is not None for station in fleet.stations)
        await fleet.until(lambda running: all(station.core.trace is None for station in running.stations))


async def test_a_second_host_is_told_that_another_one_traces(model: ModelFolder) -> None:
    async with engine_over("layers:2", model) as (first, fleet):
        tracing = Tracing(first.network, time.perf_counter)
        await tracing.start()
        async with Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as second:
            refused = await recorded(second)
        assert all("another host traces" in track.problem for track in refused.stations)
        assert refused.tracks[0].events
        assert not any(track.problem for track in (await tracing.collect()).tracks)


async def test_a_station_with_another_clock_is_told_in_the_hosts(model: ModelFolder) -> None:
    async with engine_over("layers:2", model) as (engine, fleet):
        for station in fleet.stations:
            station.core.use_clock(lambda: time.perf_counter() + 5000.0)
            await engine.generate(PROMPT, max_tokens=1).collect()
        recording = await recorded(engine)
    # Kernel calls are timed by the shell's own clock; messages are told in the clock the station was given.
    for track in recording.stations:
        assert abs(track.offset_s - 5000.0) <= track.error_s < 1.0
        arrived = [event for event in track.events if event.what == What.RECEIVE]
        assert all(recording.began_s - 1.0 < event.began_s < recording.ended_s + 1.0 for event in arrived)


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        (GetTrace(), "no trace was started"),
        (StartTrace(0), "1 to 1,048,576"),
        (StartTrace(1 << 40), "1 to 1,048,576"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_with_the_numbers(
    model: ModelFolder, request_: TraceRequest, refused: str
) -> None:
    async with engine_over("layers:2", model) as (engine, _):
        with pytest.raises(BadMessageError, match=refused):
            await engine.network.stations[0].link.call(bands.TRACES, encode(request_), timeout_s=10.0)


async def test_a_full_ring_keeps_the_newest_and_counts_the_rest(model: ModelFolder) -> None:
    async with engine_over("layers:2", model) as (engine, _):
        tracing = Tracing(engine.network, time.perf_counter, max_events=8)
        await tracing.start()
        await engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True).collect()
        recording = await tracing.collect()
    assert all(len(track.events) <= 8 and track.dropped > 0 for track in recording.tracks)
    last = len(PROMPT) + TOKENS - 2
    assert all(track.events[-1].first >= last for track in recording.tracks)
    check_format(chrome_trace(recording))


async def test_an_engine_writes_its_trace_when_it_is_left(model: ModelFolder, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    async with engine_over("trisplit", model, trace=target) as (engine, _):
        await engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True).collect()
    trace = json.loads(target.read_text())
    spans = check_format(trace)
    assert {span["cat"] for own in spans.values() for span in own} == LANES
    assert trace["otherData"]["plan"] == "connected"
    assert [process["dropped"] for process in trace["otherData"]["processes"]] == [0] * 5


async def test_a_trace_that_cannot_be_written_is_refused_at_once(model: ModelFolder, tmp_path: Path) -> None:
    target = tmp_path / "missing" / "trace.json"
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        async with engine_over("layers:2", model, trace=target):
            raise AssertionError("the engine must not start")


async def test_the_breakdown_accounts_for_the_whole_time_of_the_passes(model: ModelFolder) -> None:
    async with engine_over("trisplit", model) as (engine, _):
        recording = await recorded(engine)
    found = break_down(recording, lambda event: event.first >= len(PROMPT))
    assert found.passes == TOKENS - 1
    assert {role: one.calls for role, one in found.per_role.items()} == {
        "embed": 3, "attn": 3 * LAYERS, "gate_up": 3 * LAYERS, "down": 3 * LAYERS, "head": 3,
    }  # fmt: skip
    assert found.per_role["down"].messages_received == 2 * 3 * LAYERS
    parts = sum(one.pass_compute_s + one.queue_s for one in found.per_role.values()) + found.wire_s
    assert parts == pytest.approx(found.pass_s)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.shares[found.bottleneck] == max(found.shares.values())
    json.dumps(found.to_json())
