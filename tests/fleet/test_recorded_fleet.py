"""A fleet that another process supervises: what an engine that joins it by its state takes over and can tell."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from aeonflow.errors import StationLostError
from host import Engine
from host.fleet import FleetError, StationOptions
from host.fleet.recorded import recorded_stations
from host.fleet.state import FleetRegistry, FleetState, StationRecord, state_path
from host.fleet.supervisor import Supervisor
from host.plan import make_plan

from .test_fleet_state import state

WAIT_S = 60.0


@asynccontextmanager
async def supervised(root: Path, model: Path, **options: object) -> AsyncIterator[FleetState]:
    """A fleet under a supervisor, as `aeonflow up` runs one."""
    is_up: asyncio.Future[FleetState] = asyncio.get_running_loop().create_future()
    station_options = StationOptions(model=str(model), **options)  # type: ignore[arg-type]
    supervisor = Supervisor(FleetRegistry(root), "f", make_plan("layers:2", 4), station_options)
    async with asyncio.timeout(WAIT_S):
        running = asyncio.create_task(supervisor.run(on_up=is_up.set_result))
        await asyncio.wait((running, is_up), return_when=asyncio.FIRST_COMPLETED)
        try:
            yield is_up.result()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await running


async def test_a_station_of_a_supervised_fleet_killed_mid_token_is_told_with_its_signal_and_last_lines(
    tiny_model: Path, tmp_path: Path
) -> None:
    async with supervised(tmp_path, tiny_model) as found, Engine.connect(found) as engine:
        generation = engine.generate("Hello", max_tokens=3000, ignore_eos=True)
        await anext(generation)
        os.kill(found.stations[1].pid, signal.SIGKILL)
        with pytest.raises(StationLostError, match=r"station layers-1 .*; killed by SIGKILL; last log lines: .*gone"):
            await generation.collect()
        assert len((await engine.generate("Hello", max_tokens=3, ignore_eos=True).collect()).token_ids) == 3


async def test_an_engine_delays_and_batches_as_the_fleet_it_joins_was_told_to(tiny_model: Path, tmp_path: Path) -> None:
    async with supervised(tmp_path, tiny_model, link_delay_ms=30.0, coalesce=False) as found:
        assert (found.link_delay_ms, found.coalesce) == (30.0, False)
        assert await delayed_and_batched(Engine.connect(found)) == (True, False)
        assert await delayed_and_batched(Engine.connect(found, link_delay_ms=0.0, coalesce=True)) == (False, True)


async def delayed_and_batched(connecting: AbstractAsyncContextManager[Engine]) -> tuple[bool, bool]:
    """Did the host's links hold messages back, and did frames of eight answers at once share messages?"""
    async with connecting as engine:
        await asyncio.gather(*(engine.generate("Hello", max_tokens=1).collect() for _ in range(8)))
        stats = [station.link.stats for station in engine.network.stations]
        return all(s.delayed_messages for s in stats), all(s.frames_sent > s.messages_sent for s in stats)


async def test_a_fleet_with_a_station_away_is_refused_naming_it() -> None:
    dead = StationRecord(name="down", roles=("down:0-3",), url="", pid=0, state="dead", exit_status=-9)
    broken = state(stations=(*state().stations, dead))
    with pytest.raises(FleetError, match=r"^fleet 'f' is not whole: station down is dead \(killed by SIGKILL\)$"):
        async with Engine.connect(broken):
            pass
    starting = StationRecord(name="down", roles=("down:0-3",), url="", pid=7, state="starting")
    with pytest.raises(FleetError, match=r"^fleet 'f' is still starting: station down is starting$"):
        async with Engine.connect(state(stations=(starting,), is_up=False)):
            pass


def test_recorded_stations_follow_the_state_file_and_end_with_it(tmp_path: Path) -> None:
    registry = FleetRegistry(tmp_path)
    directory = registry.directory("f")
    directory.mkdir(parents=True)
    elsewhere = StationRecord(name="far", roles=("head",), url="ws://192.0.2.1:9", pid=0, state="ready")
    first = state(directory=str(directory), stations=(*state().stations, elsewhere))
    registry.write(first)
    station, far = recorded_stations(first)
    assert far is None
    assert station is not None
    assert (station.name, station.url, station.pid, station.exit_status) == ("attn", "ws://127.0.0.1:9", 7, None)
    assert station.log_tail() == ()
    (directory / "attn.log").write_text("".join(f"line {i}\n" for i in range(9000)))
    assert station.log_tail(2) == ("line 8998", "line 8999")
    record = msgspec.structs.replace(first.stations[0], url="", pid=0, state="dead", exit_status=3)
    registry.write(msgspec.structs.replace(first, stations=(record, elsewhere)))
    assert (station.url, station.pid, station.exit_status) == ("", 0, 3)
    state_path(directory).unlink()
    assert (station.url, station.pid, station.exit_status) == ("", 0, None)
