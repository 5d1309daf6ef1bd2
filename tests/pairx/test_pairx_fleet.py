"""Engines on real sockets with residual seeds: the tokens and logits of solo, what is counted, and what faults do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aeonflow import bands, fano
from aeonflow.errors import StationLostError
from host import Engine
from stations.models.folder import ModelFolder
from tests.engine.local_stations import TOKEN, LocalFleet, local_fleet
from tests.pairx.conftest import MakeModel

PROMPT = "The stations pass a token along, and the next takes it on."
DEADLINE_S = 1.5
Change = Callable[[int, int, bytes], list[tuple[int, int, bytes]]]  # stream, sequence, payload → what comes instead


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> ModelFolder:
    return make_model("layers=4")


async def answered(engine: Engine, tokens: int = 6) -> tuple[Any, ...]:
    result = await engine.generate(PROMPT, max_tokens=tokens, ignore_eos=True, logits_hash=True).collect()
    return result.token_ids, result.logits_hash


@pytest.fixture(scope="module")
def plain(model: ModelFolder) -> tuple[Any, ...]:
    async def one_station() -> tuple[Any, ...]:
        async with local_fleet("layers:1", model) as fleet, joined(fleet, "off") as engine:
            return await answered(engine)

    return asyncio.run(one_station())


def joined(fleet: LocalFleet, mode: str, **options: Any) -> Any:
    return Engine.connect(fleet.urls, token=TOKEN, transport="websockets", pair_x=mode, **options)


@pytest.mark.parametrize("plan", ["trisplit", "trisplit:per-layer"])
async def test_shadow_and_bypass_give_the_logits_of_solo_by_chain_and_relay(
    plan: str, model: ModelFolder, plain: tuple[Any, ...]
) -> None:
    async with local_fleet(plan, model) as fleet:
        for mode in ("shadow", "bypass"):
            for route in ("chain", "relay"):
                async with joined(fleet, mode, route=route, prefill_chunk=7) as engine:
                    assert await answered(engine) == plain, (mode, route)


async def test_status_compares_what_was_sent_with_what_came_and_says_how_far_layers_are_off(model: ModelFolder) -> None:
    for route in ("chain", "relay"):
        async with local_fleet("trisplit:per-layer", model) as fleet, joined(fleet, "shadow", route=route) as engine:
            await answered(engine)
            told = (await engine.status())["pair_x"]
        assert (told["mode"], told["layers"], told["problem"]) == ("shadow", [1, 2, 3], "")
        lines = told["lines"]
        assert set(lines) == {"123", "145"}
        for counts in lines.values():
            assert counts["sent"] == counts["received"] > 0 == counts["missing"]
        assert lines["145"]["sent"] == 3 * lines["123"]["sent"]
        assert told["completed"] == lines["123"]["sent"] + lines["145"]["sent"]
        assert told["shadow"]["0"]["equal"] == told["shadow"]["0"]["count"]
        assert all(told["shadow"][layer]["max_abs"] > 1e-4 for layer in ("1", "2", "3"))


async def test_a_result_says_which_layers_were_seeded(model: ModelFolder) -> None:
    async with local_fleet("trisplit", model) as fleet, joined(fleet, "bypass", pair_x_layers="2-3") as engine:
        result = await engine.generate(PROMPT, max_tokens=4, ignore_eos=True).collect()
    rows = len(result.prompt_ids) + 3
    assert result.to_json()["pair_x"] == {
        "mode": "bypass", "layers": [2, 3], "seeded": rows, "drafted": 0, "accepted": 0, "diverged": 0,
    }  # fmt: skip
    assert (result.exactness.cut, result.exactness.model) == ("bounded", "exact"), "of the reference kernels"


async def test_bytes_a_token_with_seeds_are_those_the_links_carry(model: ModelFolder) -> None:
    hidden = 4 * model.card.hidden_size
    for plan, mode, added in (
        ("trisplit", "bypass", -3 * (58 + hidden)),
        ("trisplit:per-layer", "bypass", 3 * (48 + 32)),
        ("trisplit", "shadow", 58 + hidden),
    ):
        sizes = []
        async with local_fleet(plan, model) as fleet:
            for one in ("off", mode):
                async with joined(fleet, one) as engine:
                    sizes.append(
                        (await engine.generate(PROMPT, max_tokens=3, ignore_eos=True).collect()).bytes_per_token
                    )
        assert sizes[1] - sizes[0] == added, (plan, mode)


# Faults, by somebody on the line to one station.


def tamper(fleet: LocalFleet, station: str, change: Change) -> None:
    """Seeds that come to `station` from others pass `change`."""
    core = fleet.station(station).core
    receive = core.receive

    def changed(link: int, stream: int, sequence: int, flags: Any, payload: Any, now: float) -> None:
        if not bands.is_seed(stream):
            receive(link, stream, sequence, flags, payload, now)
            return
        for other_stream, other_sequence, other_payload in change(stream, sequence, bytes(payload)):
            receive(link, other_stream, other_sequence, flags, other_payload, now)

    core.receive = changed  # type: ignore[method-assign]


def restore(fleet: LocalFleet, station: str) -> None:
    del fleet.station(station).core.receive


FAULTS: dict[str, Change] = {
    "lost": lambda stream, sequence, payload: [],
    "doubled": lambda stream, sequence, payload: 2 * [(stream, sequence, payload)],
    "damaged": lambda stream, sequence, payload: [(stream, sequence, payload[:60] + b"\xff" + payload[61:])],
    "of the wrong sign": lambda stream, sequence, payload: [(stream ^ fano.MINUS, sequence, payload)],
}


@pytest.mark.parametrize("fault", ["lost", "damaged"])
async def test_shadow_seeds_that_are_tampered_with_change_no_token(
    fault: str, model: ModelFolder, plain: tuple[Any, ...]
) -> None:
    async with local_fleet("trisplit:per-layer", model) as fleet, joined(fleet, "shadow") as engine:
        tamper(fleet, "attn-2", FAULTS[fault])
        assert await answered(engine) == plain
        told = (await engine.status())["pair_x"]
    assert (told["problem"] != "") == (fault != "damaged"), "a damaged one is but one more that differs"


async def test_a_station_that_loses_every_bypass_seed_is_named_and_no_slot_is_stuck(
    model: ModelFolder, plain: tuple[Any, ...]
) -> None:
    async with (
        local_fleet("trisplit:per-layer", model) as fleet,
        joined(fleet, "bypass", deadline_s=DEADLINE_S) as engine,
    ):
        tamper(fleet, "attn-1", FAULTS["lost"])
        assert await answered(engine) == plain
        restore(fleet, "attn-1")
        told = (await engine.status())["pair_x"]
        assert "a residual seed for attn of layer 1 did not come to station attn-1" in told["degraded"]
        assert told["slots"] == 0
        assert all(not core.sessions.join_gauge.num_bytes for core in (s.core for s in fleet.stations))


@pytest.mark.parametrize(("mode", "name"), [("shadow", "attn"), ("bypass", "gate_up"), ("draft", "attn")])
async def test_a_station_killed_in_the_middle_is_a_clear_error_and_the_next_request_is_right(
    mode: str, name: str, model: ModelFolder, plain: tuple[Any, ...]
) -> None:
    async with local_fleet("trisplit", model) as fleet, joined(fleet, mode) as engine:
        station = fleet.station(name)
        seen: list[int] = []

        async def stopped_in_the_middle() -> None:
            async for chunk in engine.generate(PROMPT, max_tokens=60, ignore_eos=True):
                seen.extend(chunk.token_ids)
                if len(seen) == 3:
                    await station.stop()

        with pytest.raises(StationLostError, match=name):
            await stopped_in_the_middle()
        assert tuple(seen[:3]) == plain[0][:3]
        await station.start()
        assert await answered(engine) == plain
        told = (await engine.status())["pair_x"]
        assert told["slots"] == 0
        assert not any(one.core.sessions.join_gauge.num_bytes for one in fleet.stations)
