"""Engines on real sockets with drafts and live seeds: tokens and logits of one station, whatever becomes of seeds."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from aeonflow import bands, fano
from aeonflow.errors import StationLostError
from host import Engine
from stations.models.folder import ModelFolder
from tests.engine.local_stations import TOKEN, LocalFleet, local_fleet

from .conftest import MakeModel

PROMPT = "The stations pass a token along, and the next takes it on."
TOKENS = 40  # past the plain ones that every trial of drafts begins with
LAYERS = 5
SLOW = pytest.mark.slow
Answered = tuple[tuple[int, ...], str | None]


@pytest.fixture(scope="module")
def model(make_model: MakeModel, tiny_model: object) -> ModelFolder:
    return make_model(f"layers={LAYERS}")


async def answered(engine: Engine, tokens: int = TOKENS, **options: Any) -> Answered:
    result = await engine.generate(PROMPT, max_tokens=tokens, ignore_eos=True, logits_hash=True, **options).collect()
    return result.token_ids, result.logits_hash


def joined(fleet: LocalFleet, mode: str = "draft", **options: Any) -> Any:
    return Engine.connect(fleet.urls, token=TOKEN, transport="websockets", pair_x=mode, **options)


def plain(model: ModelFolder, **options: Any) -> Answered:
    async def one_station() -> Answered:
        async with local_fleet("layers:1", model, "fast") as fleet, joined(fleet, "off") as engine:
            return await answered(engine, **options)

    return asyncio.run(one_station())


@pytest.fixture(scope="module")
def greedy(model: ModelFolder) -> Answered:
    return plain(model)


@pytest.fixture(scope="module")
def sampled(model: ModelFolder) -> Answered:
    return plain(model, temperature=0.9, top_k=40, seed=11)


def counted(fleet: LocalFleet, event: str) -> int:
    return sum(station.core.counters.events[event] for station in fleet.stations)


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("trisplit+shards=2", {}),
        ("trisplit:per-layer", {"pair_x_seed": "x", "speculate": "lookup"}),
        pytest.param("trisplit:per-layer", {}, marks=SLOW),
        pytest.param("trisplit+shards=2", {"pair_x_seed": "x", "speculate": "lookup"}, marks=SLOW),
    ],
)
async def test_drafts_give_the_tokens_and_logits_of_one_station(
    plan: str, options: dict[str, Any], model: ModelFolder, greedy: Answered, sampled: Answered
) -> None:
    async with local_fleet(plan, model, "fast") as fleet, joined(fleet, **options) as engine:
        assert await answered(engine) == greedy
        assert await answered(engine, temperature=0.9, top_k=40, seed=11) == sampled
        told = (await engine.status())["pair_x"]
        assert counted(fleet, "drafts_answered") > 0
    assert (told["mode"], told["layers"], told["problem"], told["slots"]) == ("draft", [2, 3, 4], "", 0)
    assert [told["lines"][line]["missing"] for line in ("145", "246", "347")] == [0, 0, 0]


FAULTS = {
    "lost": lambda stream, sequence, payload: [],
    "doubled": lambda stream, sequence, payload: 2 * [(stream, sequence, payload)],
    "damaged": lambda stream, sequence, payload: [(stream, sequence, payload[:60] + b"\xff" + payload[61:])],
    "cut short": lambda stream, sequence, payload: [(stream, sequence, payload[:-1])],
    "of the wrong sign": lambda stream, sequence, payload: [(stream ^ fano.MINUS, sequence, payload)],
}


@pytest.mark.parametrize(
    "fault",
    ["lost", "damaged", *(pytest.param(name, marks=SLOW) for name in ("cut short", "doubled", "of the wrong sign"))],
)
async def test_drafts_whose_seeds_are_tampered_with_change_no_token_and_leave_no_slot(
    fault: str, model: ModelFolder, greedy: Answered
) -> None:
    chance = random.Random(3)
    async with local_fleet("trisplit", model, "fast") as fleet, joined(fleet) as engine:
        for station in fleet.stations[:3]:
            receive = station.core.receive

            def changed(link: int, stream: int, sequence: int, flags: Any, payload: Any, now: float, receive=receive):
                whole = [(stream, sequence, payload)]
                if bands.is_seed(stream) and chance.random() < 0.3:
                    whole = FAULTS[fault](stream, sequence, bytes(payload))
                for stream, sequence, payload in whole:
                    receive(link, stream, sequence, flags, payload, now)

            station.core.receive = changed  # type: ignore[method-assign]
        assert await answered(engine) == greedy
        assert await answered(engine) == greedy
        assert counted(fleet, "poisoned_frames") == counted(fleet, "vents") == 0
        await fleet.until(lambda fleet: not any(len(station.core.sessions) for station in fleet.stations))
        assert all(station.core.sessions.join_gauge.num_bytes == 0 for station in fleet.stations)


async def test_a_station_lost_amid_drafts_is_named_and_the_next_request_is_right(
    model: ModelFolder, greedy: Answered
) -> None:
    async with local_fleet("trisplit", model, "fast") as fleet, joined(fleet) as engine:
        generation = engine.generate(PROMPT, max_tokens=400, ignore_eos=True)
        chunks = aiter(generation)
        while counted(fleet, "drafts_answered") < 2:
            await anext(chunks)
        station = fleet.station("gate_up")
        await station.stop()
        with pytest.raises(StationLostError, match="gate_up"):
            await generation.collect()
        await station.start()
        assert await answered(engine) == greedy


async def test_sessions_side_by_side_draft_each_for_itself(model: ModelFolder, greedy: Answered) -> None:
    async with local_fleet("trisplit", model, "fast") as fleet, joined(fleet) as engine:
        assert await asyncio.gather(*(answered(engine) for _ in range(4))) == [greedy] * 4


@pytest.mark.parametrize(
    "kv", [{"kv": "q4"}, *(pytest.param(kv, marks=SLOW) for kv in ({"window": 24}, {"kv_max": 128}))], ids=str
)
async def test_drafts_meet_caches_that_change_form(kv: dict[str, Any], model: ModelFolder) -> None:
    async with local_fleet("layers:1", model, "fast") as fleet, joined(fleet, "off", **kv) as engine:
        expected = await answered(engine, 190)
    async with local_fleet("trisplit", model, "fast") as fleet, joined(fleet, **kv) as engine:
        assert await answered(engine, 190) == expected
        assert counted(fleet, "drafts_answered") > 0


@pytest.mark.parametrize("residual", ["ladder", pytest.param("parallel", marks=SLOW)])
async def test_live_gives_the_tokens_and_logits_of_one_station_and_of_off(
    residual: str, make_model: MakeModel, tiny_model: object
) -> None:
    model = make_model(f"layers=6,residual={residual}")
    expected = None
    for plan, mode, options in (
        ("layers:1", "off", {}),
        ("trisplit", "off", {}),
        ("trisplit", "live", {}),
        ("trisplit:per-layer", "live", {"pair_x_layers": "2-4", "prefill_chunk": 3}),
        ("trisplit+shards=2", "live", {"speculate": "lookup"}),
    ):
        async with local_fleet(plan, model, "fast") as fleet, joined(fleet, mode, **options) as engine:
            found = await answered(engine, 12)
            expected = expected or found
            assert found == expected, (plan, mode)
