"""Links that break between real processes: a clear error that names the station, and the next request is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aeonflow.errors import AeonflowError, DeadlineError, StationLostError
from host import Engine

from .conftest import WAIT_S, drained, proxied_fleet, short_answer, under_way

STATIONS = ("layers-0", "layers-1")


@pytest.mark.parametrize("transport", ["websockets", "picows"])
@pytest.mark.parametrize("fault", ["cut", "half_close", "corrupt target", "corrupt client"])
async def test_a_broken_link_is_an_error_that_names_the_station_and_the_next_request_is_served(
    fault: str, transport: str, tiny_model: Path
) -> None:
    async with asyncio.timeout(2 * WAIT_S), proxied_fleet("layers:2", tiny_model, transport=transport) as broken:
        fleet, proxies, engine = broken
        pids = [station.pid for station in fleet.stations]
        expected = await short_answer(engine)
        generation = await under_way(engine)
        command, _, towards = fault.partition(" ")
        if command == "corrupt":
            proxies[1].corrupt(towards)
        else:
            getattr(proxies[1], command)()
        with pytest.raises(StationLostError, match="layers-1"):
            await drained(generation)
        assert await short_answer(engine) == expected
        assert [station.pid for station in fleet.stations] == pids  # bad bytes close a connection, never a process


async def test_a_stalled_link_is_noticed_by_its_silence(tiny_model: Path) -> None:
    async with asyncio.timeout(2 * WAIT_S), proxied_fleet("layers:2", tiny_model) as broken:
        expected = await short_answer(broken.engine)
        generation = await under_way(broken.engine)
        broken.proxies[1].stall()
        with pytest.raises(StationLostError, match=r"layers-1.*silent"):
            await drained(generation)
        broken.proxies[1].resume()
        assert await short_answer(broken.engine) == expected


async def test_a_deadline_shorter_than_the_silence_names_the_stalled_station(tiny_model: Path) -> None:
    async with asyncio.timeout(2 * WAIT_S), proxied_fleet("layers:2", tiny_model, deadline_s=0.5) as broken:
        generation = await under_way(broken.engine)
        broken.proxies[0].stall()
        with pytest.raises(DeadlineError, match=r"within 0\.5 s: station layers-0"):
            await drained(generation)
        broken.proxies[0].resume()


async def test_another_host_on_the_same_stations_does_not_notice(tiny_model: Path) -> None:
    async with asyncio.timeout(2 * WAIT_S), proxied_fleet("layers:2", tiny_model) as broken:
        fleet, proxies, engine = broken
        async with Engine.connect(fleet.urls, token=fleet.token) as other:
            options = {"max_tokens": 300, "ignore_eos": True, "logits_hash": True}
            expected = await other.generate("Undisturbed", **options).collect()
            unharmed = other.generate("Undisturbed", **options)
            await anext(unharmed)
            for fault in ("cut", "corrupt", "half_close"):
                generation = await under_way(engine)
                if fault == "corrupt":
                    proxies[1].corrupt("target")
                else:
                    getattr(proxies[0], fault)()
                with pytest.raises(AeonflowError):
                    await drained(generation)
            result = await unharmed.collect()
            assert result.token_ids == expected.token_ids
            assert result.logits_hash == expected.logits_hash


async def test_a_station_that_never_answers_a_dial_is_named(tiny_model: Path) -> None:
    async with asyncio.timeout(2 * WAIT_S), proxied_fleet("layers:2", tiny_model) as broken:
        broken.proxies[0].stall()
        urls = [proxy.url for proxy in broken.proxies]
        with pytest.raises(AeonflowError, match=urls[0]):
            async with Engine.connect(urls, token=broken.fleet.token):
                pass
