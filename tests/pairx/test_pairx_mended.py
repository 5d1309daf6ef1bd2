"""Canonical seeds that fail: the plain chain goes on to the same tokens, says so, and seeds are tried again later."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from aeonflow import Message, bands
from aeonflow.errors import DeadlineError, SeedError
from host import Engine, watch
from host.pairx.lines import REOPEN_CAP_S, REOPEN_FIRST_S, SeedLines
from host.result import Result
from host.sequence import TokenSequence
from stations.models.folder import ModelFolder
from tests.engine.local_stations import TOKEN, LocalFleet, local_fleet

from .conftest import MakeModel
from .tampering import FAULTS, OnTheLine, another

PROMPT = "The stations pass a token along, and the next takes it on."
TOKENS = 6
LAYERS = 4
TURNS = ("Hello there.", "And then?", "Go on.")
SLOW = pytest.mark.slow
SAMPLED = {"temperature": 0.9, "top_k": 40, "seed": 11}
OPTIONS = pytest.mark.parametrize("options", [{}, pytest.param(SAMPLED, marks=SLOW)], ids=["greedy", "seeded"])
MORE: dict[str, dict[str, Any]] = {"prefill": {"prefill_chunk": 7}, "decode": {"speculate": "lookup"}}
COUNTED = {
    "doubled": "duplicate", "damaged": "corrupt", "cut short": "corrupt", "of the wrong sign": "wrong_sign",
    "contradicted": "conflict", "late": "late",
}  # fmt: skip
Answered = tuple[tuple[int, ...], str | None]


class Place(NamedTuple):
    """A seed of layer 2: of which kind of model, to which station, on which line."""

    residual: str
    station: str
    line: str


BYPASS = Place("sequential", "attn-2", "145")
LIVE = [Place("ladder", "attn-2", "145"), Place("ladder", "gate_up-2", "246"), Place("ladder", "gate_up-2", "347"),
        Place("parallel", "gate_up-2", "347")]  # fmt: skip


async def asked(engine: Engine, **options: Any) -> Result:
    return await engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, logits_hash=True, **options).collect()


def said(result: Result) -> Answered:
    return result.token_ids, result.logits_hash


def joined(fleet: LocalFleet, mode: str, **options: Any) -> Any:
    return Engine.connect(fleet.urls, token=TOKEN, transport="websockets", pair_x=mode, **options)


PLAIN: dict[tuple[str, str], Answered] = {}


async def plain(model: ModelFolder, **options: Any) -> Answered:
    """What one station says."""
    key = model.card.fingerprint, str(options)
    if key not in PLAIN:
        async with local_fleet("layers:1", model) as fleet, joined(fleet, "off") as engine:
            PLAIN[key] = said(await asked(engine, **options))
    return PLAIN[key]


async def check_idle(fleet: LocalFleet) -> None:
    """No slot, join or session is left."""
    await fleet.until(lambda fleet: not any(len(station.core.sessions) for station in fleet.stations))
    assert not any(station.core.sessions.join_gauge.num_bytes for station in fleet.stations)


async def check_fault(
    fleet: LocalFleet, engine: Engine, expected: Answered, place: Place, fault: str, *, when: str = "decode",
    **options: Any,
) -> None:  # fmt: skip
    """One seed fails in an answer; then one answer more, and one after seeds were tried again."""
    lines, mode = engine.network.ways.lines, engine.network.seeding.mode
    before = (await engine.status())["pair_x"]
    num_prompt = len(engine.make_request(PROMPT, {}).prompt_ids)
    at = 0 if when == "prefill" else num_prompt + 2
    with OnTheLine(fleet, place.station, fault, line=place.line, at=at) as tampering:
        first = await asked(engine, **options)
        assert tampering.done == 1
    assert said(first) == expected
    told = (await engine.status())["pair_x"]
    assert told["slots"] == 0
    counted = {name: told[name] - before[name] for name in ("dropped", "closings", "late", *COUNTED.values())}
    if counter := COUNTED.get(fault):
        assert counted[counter] == 1 or (counter == "late" and when == "prefill")  # the chunks behind it are late too
        assert counted["dropped"] == counted["late"] + (counter != "late")
    num_rows = num_prompt + TOKENS - 1
    if fault == "doubled":
        assert (told["degraded"], counted["closings"], lines.are_open) == ("", 0, True)
        assert "degraded" not in first.pair_x
        assert first.pair_x["seeded"] == num_rows
        return
    second = await asked(engine, **options)
    assert said(second) == expected
    assert told["degraded"] == first.pair_x["degraded"] == second.pair_x["degraded"] != ""
    assert told["degraded"] in told["problem"]
    assert counted["closings"] == 1
    assert told["reopens_s"] > 0
    assert (0 if when == "prefill" else at) <= first.pair_x["seeded"] < num_rows
    assert (second.pair_x["mode"], second.pair_x["seeded"]) == (mode, 0)
    lines.reopen()
    third = await asked(engine, **options)
    assert said(third) == expected
    assert "degraded" not in third.pair_x
    assert third.pair_x["seeded"] == num_rows
    await check_idle(fleet)


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost seeds are found soon."""
    monkeypatch.setattr(watch, "WATCH_PERIOD_S", 0.1)
    monkeypatch.setattr(watch, "SEED_PATIENCE_S", 0.3)


@pytest.fixture(scope="module")
def sequential(make_model: MakeModel) -> ModelFolder:
    return make_model(f"layers={LAYERS}")


async def test_a_bypass_seed_that_fails_changes_no_token(sequential: ModelFolder, watchful: None) -> None:
    expected = await plain(sequential)
    async with local_fleet("trisplit:per-layer", sequential) as fleet, joined(fleet, "bypass") as engine:
        for fault in ("lost", "late", "doubled", "damaged", "of the wrong sign"):
            await check_fault(fleet, engine, expected, BYPASS, fault)


@SLOW
@pytest.mark.parametrize("when", ["prefill", "decode"])
@pytest.mark.parametrize("route", ["chain", "relay"])
@OPTIONS
async def test_a_bypass_seed_that_fails_changes_no_token_on_any_route(
    options: dict[str, Any], route: str, when: str, sequential: ModelFolder, watchful: None
) -> None:
    expected = await plain(sequential, **options)
    async with (
        local_fleet("trisplit:per-layer", sequential) as fleet,
        joined(fleet, "bypass", route=route, **MORE[when]) as engine,
    ):
        for fault in sorted(FAULTS):
            await check_fault(fleet, engine, expected, BYPASS, fault, when=when, **options)


@pytest.mark.parametrize("place", [LIVE[0], LIVE[3]], ids="-".join)
async def test_a_live_seed_that_is_lost_changes_no_token(place: Place, make_model: MakeModel, watchful: None) -> None:
    model = make_model(f"layers={LAYERS},residual={place.residual}")
    expected = await plain(model)
    async with local_fleet("trisplit:per-layer", model) as fleet, joined(fleet, "live") as engine:
        await check_fault(fleet, engine, expected, place, "lost")


@SLOW
@pytest.mark.parametrize("when", ["prefill", "decode"])
@pytest.mark.parametrize("place", LIVE, ids="-".join)
@OPTIONS
async def test_a_live_seed_that_fails_changes_no_token_wherever_it_goes(
    options: dict[str, Any], place: Place, when: str, make_model: MakeModel, watchful: None
) -> None:
    model = make_model(f"layers={LAYERS},residual={place.residual}")
    expected = await plain(model, **options)
    for route in ("chain", "relay"):
        async with (
            local_fleet("trisplit:per-layer", model) as fleet,
            joined(fleet, "live", route=route, **MORE[when]) as engine,
        ):
            for fault in sorted(FAULTS):
                await check_fault(fleet, engine, expected, place, fault, when=when, **options)


async def test_a_live_seed_that_the_relaying_host_cannot_read_changes_no_token(make_model: MakeModel) -> None:
    model = make_model(f"layers={LAYERS},residual=ladder")
    expected = await plain(model)
    async with local_fleet("trisplit:per-layer", model) as fleet, joined(fleet, "live", route="relay") as engine:
        forwarded: Any = engine.network.ways.asked
        take, seen = forwarded.take, 0

        def cut_short(source: Any, message: Message, sequences: Any) -> bool:
            nonlocal seen
            seen += bands.is_seed(message.stream)
            if seen == 9 and bands.is_seed(message.stream):
                message = message._replace(payload=bytes(message.payload)[:-3])
            return bool(take(source, message, sequences))

        forwarded.take = cut_short
        result = await asked(engine)
        assert said(result) == expected
        assert "bytes" in result.pair_x["degraded"]
        assert seen >= 9
        await check_idle(fleet)


async def test_an_engine_starts_on_the_chain_where_every_seed_is_damaged_and_closes_the_lines_for_longer_each_time(
    sequential: ModelFolder,
) -> None:
    expected = await plain(sequential)
    async with local_fleet("trisplit:per-layer", sequential) as fleet:
        with OnTheLine(fleet, "attn-1", "damaged", always=True):
            async with joined(fleet, "bypass") as engine:
                lines = engine.network.ways.lines
                assert lines.closings == 1
                first = await asked(engine)
                lines.reopen()
                second = await asked(engine)
                assert said(first) == said(second) == expected
                assert lines.closings == 2
                assert lines.to_json()["reopens_s"] > REOPEN_FIRST_S
                status = await engine.status()
                assert status["ready"]
                assert "for layer 1 is not what was sent" in status["pair_x"]["problem"]
        await check_idle(fleet)


@pytest.mark.parametrize("mode", ["bypass", pytest.param("live", marks=SLOW)])
async def test_a_conversation_goes_on_from_its_rows_by_the_chain_and_returns_to_seeds(
    mode: str, make_model: MakeModel
) -> None:
    model = make_model(f"layers={LAYERS}" if mode == "bypass" else f"layers={LAYERS},residual=ladder")

    async def turns(engine: Engine, after_first: Any = None) -> list[Result]:
        found: list[Result] = []
        async with engine.session() as session:
            for text in TURNS:
                result = await session.generate(text, max_tokens=4, ignore_eos=True, logits_hash=True).collect()
                found.append(result)
                if len(found) == 2 and after_first is not None:
                    after_first()
        return found

    async with local_fleet("layers:1", model) as fleet, joined(fleet, "off") as engine:
        expected = [said(result) for result in await turns(engine)]
    async with local_fleet("trisplit:per-layer", model) as fleet, joined(fleet, mode) as engine:
        with OnTheLine(fleet, "attn-2", "damaged", at=1):
            found = await turns(engine, engine.network.ways.lines.reopen)
        assert [said(result) for result in found] == expected
        assert [bool(result.pair_x.get("degraded")) for result in found] == [True, True, False]
        assert all(result.usage.cached_tokens for result in found[1:])
        assert found[1].pair_x["seeded"] == 0 < found[2].pair_x["seeded"]
        await check_idle(fleet)


async def test_a_seed_that_is_contradicted_between_two_turns_costs_no_token_of_the_next(
    sequential: ModelFolder,
) -> None:
    options: Any = {"max_tokens": 4, "ignore_eos": True, "logits_hash": True}
    async with (
        local_fleet("layers:1", sequential) as fleet,
        joined(fleet, "off") as engine,
        engine.session() as session,
    ):
        expected = [said(await session.generate(text, **options).collect()) for text in TURNS]
    async with local_fleet("trisplit:per-layer", sequential) as fleet, joined(fleet, "bypass") as engine:
        async with engine.session() as session:
            found = []
            for text in TURNS:
                with OnTheLine(fleet, "attn-2", "seen", always=True) as tampering:
                    found.append(said(await session.generate(text, **options).collect()))
                if tampering.newest is not None:
                    tampering.deliver(another(tampering.newest))
        assert found == expected
        assert (await engine.status())["pair_x"]["conflict"] > 0
        await check_idle(fleet)


async def test_a_conversation_whose_way_to_the_chain_was_broken_off_asks_the_stations_again(
    sequential: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await plain(sequential, raw=True)
    async with local_fleet("trisplit:per-layer", sequential) as fleet, joined(fleet, "bypass") as engine:
        resume = engine.network.resume

        async def broken_off(sequence: TokenSequence, base: int) -> int:
            monkeypatch.setattr(engine.network, "resume", resume)
            asking = asyncio.create_task(resume(sequence, base))
            await asyncio.sleep(0)  # the stations are asked
            asking.cancel()
            raise DeadlineError("no answer to resume")

        monkeypatch.setattr(engine.network, "resume", broken_off)
        options: Any = {"max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True, "raw": True}
        async with engine.session() as session:
            num_prompt = len(engine.make_request(PROMPT, options).prompt_ids)
            with OnTheLine(fleet, "attn-2", "damaged", at=num_prompt), pytest.raises(DeadlineError, match="resume"):
                await session.generate(PROMPT, **options).collect()
            result = await session.generate(PROMPT, **options).collect()
            assert result.usage.cached_tokens == num_prompt - 1
            assert result.pair_x["degraded"]
            assert result.pair_x["seeded"] == 0
        assert said(result) == expected
        await check_idle(fleet)


async def test_answers_side_by_side_leave_the_seeds_each_when_its_own_fail(sequential: ModelFolder) -> None:
    expected = await plain(sequential)
    async with local_fleet("trisplit:per-layer", sequential) as fleet, joined(fleet, "bypass") as engine:
        num_prompt = len(engine.make_request(PROMPT, {}).prompt_ids)
        with OnTheLine(fleet, "attn-2", "of the wrong sign", at=num_prompt + 1):
            results = await asyncio.gather(*(asked(engine) for _ in range(3)))
        assert [said(result) for result in results] == 3 * [expected]
        assert sum("degraded" in result.pair_x for result in results) == 1
        assert engine.network.ways.lines.closings == 1
        await check_idle(fleet)


async def test_live_seeds_of_a_model_that_was_not_built_for_them_are_sent_again_and_at_last_the_answer_ends(
    sequential: ModelFolder,
) -> None:
    async with (
        local_fleet("trisplit:per-layer", sequential) as fleet,
        joined(fleet, "live", approximate=True) as engine,
    ):
        whole = await asked(engine)
        with OnTheLine(fleet, "gate_up-2", "damaged", line="246", at=len(whole.prompt_ids) + 1):
            assert said(await asked(engine)) == said(whole)
        assert "degraded" not in whole.pair_x
        assert engine.network.ways.lines.are_open, "the chain gives another model's rows"
        with OnTheLine(fleet, "gate_up-2", "damaged", line="246", always=True), pytest.raises(SeedError):
            await asked(engine)
        assert said(await asked(engine)) == said(whole)
        await check_idle(fleet)


def test_lines_that_fail_again_soon_stay_closed_for_longer_and_a_late_fault_counts_as_a_first_one() -> None:
    now = 0.0
    lines = SeedLines(lambda: now)
    waited = []
    for _ in range(7):
        lines.close("a fault")
        lines.close("another pass of the same")
        waited.append(lines.to_json()["reopens_s"])
        now += waited[-1] - 1.0
        lines.try_again()
        assert not lines.are_open
        now += 1.0
        lines.try_again()
        assert lines.are_open
    assert waited == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    assert lines.closings == 7
    now += REOPEN_CAP_S
    lines.close("a fault")
    assert lines.to_json() == {"degraded": "a fault", "closings": 8, "reopens_s": REOPEN_FIRST_S}
