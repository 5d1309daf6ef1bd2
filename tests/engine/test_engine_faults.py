"""A station that is lost, silent or wrong: an error that names it, at once; everything else goes on."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow.errors import DeadlineError, PoisonedError, StationLostError, UnknownSessionError
from host import Engine
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, LocalStation, local_fleet


def hang(station: LocalStation) -> None:
    """Its compute never takes another batch; its links stay well."""
    station.core.next_batch = lambda: None


@pytest.mark.parametrize("route", ["chain", "relay"])
async def test_a_station_lost_in_the_middle_fails_the_generation_and_serves_the_next_when_back(
    route: str, model: ModelFolder
) -> None:
    async with (
        local_fleet("trisplit", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, route=route, transport="websockets") as engine,
    ):
        expected = await engine.generate("Hello", max_tokens=8, ignore_eos=True, logits_hash=True).collect()
        generation = engine.generate("Hello", max_tokens=400, ignore_eos=True)
        for _ in range(5):
            await anext(generation)
        station = fleet.station("gate_up")
        await station.stop()
        with pytest.raises(StationLostError, match="gate_up"):
            await generation.collect()
        status = await engine.status()
        assert not status["ready"]
        assert "gate_up" in status["problem"]
        assert {s["name"]: s["state"] for s in status["stations"]}["gate_up"] in ("lost", "dialling")
        await station.start()
        after = await engine.generate("Hello", max_tokens=8, ignore_eos=True, logits_hash=True).collect()
        assert after.logits_hash == expected.logits_hash
        assert (await engine.status())["ready"]
        await fleet.until(lambda stations: not any(stations.sessions()))


async def test_a_request_while_a_station_is_away_fails_after_the_time_it_may_take(model: ModelFolder) -> None:
    async with (
        local_fleet("layers:2", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", rejoin_s=0.2) as engine,
    ):
        await fleet.stations[1].stop()
        await fleet.until(lambda _: not engine.network.is_ready)
        with pytest.raises(StationLostError, match=fleet.stations[1].spec.name):
            await engine.generate("Hello").collect()


@pytest.mark.parametrize("route", ["chain", "relay"])
async def test_a_station_that_comes_back_with_another_model_is_not_joined_until_it_has_the_right_one(
    route: str, model: ModelFolder, other_model: ModelFolder
) -> None:
    async with (
        local_fleet("layers:2", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, route=route, transport="websockets", rejoin_s=0.5) as engine,
    ):
        expected = await engine.generate("Hello", max_tokens=4, ignore_eos=True, logits_hash=True).collect()
        station = fleet.stations[1]
        await station.stop()
        station.model = other_model
        await station.start()
        with pytest.raises(StationLostError, match=f"{model.card.fingerprint}.*{other_model.card.fingerprint}"):
            await engine.generate("Hello").collect()
        assert other_model.card.fingerprint in (await engine.status())["problem"]
        await station.stop()
        station.model = model
        await station.start()
        await engine.network.wait_ready(60.0)
        after = await engine.generate("Hello", max_tokens=4, ignore_eos=True, logits_hash=True).collect()
        assert after.logits_hash == expected.logits_hash


async def test_an_exact_engine_does_not_join_a_station_that_comes_back_with_other_numerics(model: ModelFolder) -> None:
    async with (
        local_fleet("layers:2", model, kernels="fast") as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", exact=True, rejoin_s=0.5) as engine,
    ):
        station = fleet.stations[1]
        await station.stop()
        station.kernels = "reference"
        await station.start()
        with pytest.raises(StationLostError, match=r"exact: this route is cut: bounded; numerics ids .* differ"):
            await engine.generate("Hello").collect()


@pytest.mark.parametrize(
    ("name", "route"),
    [
        *((name, "chain") for name in ("ends", "attn", "gate_up", "down")),
        ("down", "relay"),
        *(pytest.param(name, "relay", marks=pytest.mark.slow) for name in ("ends", "attn", "gate_up")),
    ],
)
async def test_a_deadline_names_the_station_that_holds_the_position_back(
    name: str, route: str, model: ModelFolder
) -> None:
    async with (
        local_fleet("trisplit", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, route=route, transport="websockets", deadline_s=1.0) as engine,
    ):
        generation = engine.generate("Hello", max_tokens=400, ignore_eos=True)
        for _ in range(3):
            await anext(generation)
        hang(fleet.station(name))
        with pytest.raises(DeadlineError, match=f"station {name} .*has not passed it on"):
            await generation.collect()
        await fleet.until(lambda stations: not any(stations.sessions()))


async def test_a_row_of_nan_is_an_error_of_its_session_alone(model: ModelFolder) -> None:
    async with (
        local_fleet("layers:2", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):
        other = engine.generate([5, 6], max_tokens=30, ignore_eos=True, logits_hash=True)
        await anext(other)
        backend = fleet.stations[1].core.backend
        block = backend.block

        def poisoned(lo, hi, x, spans):  # type: ignore[no-untyped-def]
            out = block(lo, hi, x, spans)
            for row, span in enumerate(spans[0]):
                if span.rows == 1 and span.first == 41:
                    out[row] = np.nan
            return out

        backend.block = poisoned  # type: ignore[method-assign]
        with pytest.raises(PoisonedError):
            await engine.generate([4] * 40, max_tokens=30, ignore_eos=True).collect()
        result = await other.collect()
        backend.block = block  # type: ignore[method-assign]
        again = await engine.generate([5, 6], max_tokens=30, ignore_eos=True, logits_hash=True).collect()
        assert result.logits_hash == again.logits_hash


async def test_a_session_that_a_station_forgot_is_an_error_and_the_next_request_works(model: ModelFolder) -> None:
    async with (
        local_fleet("layers:2", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):
        generation = engine.generate("Hello", max_tokens=300, ignore_eos=True)
        await anext(generation)
        core = fleet.stations[0].core
        (session,) = list(core.sessions)
        core._control.close_session(session, "sessions_expired")
        with pytest.raises(UnknownSessionError, match="not open"):
            await generation.collect()
        assert len((await engine.generate("Hello", max_tokens=3, ignore_eos=True).collect()).token_ids) == 3
