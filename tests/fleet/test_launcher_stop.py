"""Stopping: no process is left, however the launcher ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from host.fleet import Fleet, FleetStation, StationOptions, StationState
from host.fleet.scratch import ScratchFolder

from .conftest import MakeFleet, children_of, is_alive, specs


def freeze(pid: int) -> None:
    """Stop a process and see that it stands: a signal sent before that would still be handled."""
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        os.sched_yield()


async def test_leaving_the_block_reaps_every_process(make_fleet: MakeFleet) -> None:
    async with make_fleet("a", "b", "c") as fleet:
        pids = [s.pid for s in fleet.stations]
        assert sorted(children_of(os.getpid())) == sorted(pids)
    assert children_of(os.getpid()) == []  # zombies would be listed
    assert all(s.state is StationState.STOPPED and s.pid == 0 for s in fleet.stations)


async def test_a_station_that_ignores_sigterm_is_killed_after_the_grace(make_fleet: MakeFleet) -> None:
    async with make_fleet("stubborn", "a", drain_s=0.3) as fleet:
        pass
    assert fleet.station("stubborn").exit_status == -signal.SIGKILL
    assert fleet.station("a").exit_status == -signal.SIGTERM
    assert children_of(os.getpid()) == []


async def test_a_frozen_station_is_killed_too(make_fleet: MakeFleet) -> None:
    async with make_fleet("a", drain_s=0.3) as fleet:
        freeze(fleet.station("a").pid)
    assert fleet.station("a").exit_status == -signal.SIGKILL


async def test_stop_may_be_called_again_and_before_start(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a")
    await fleet.stop()
    async with make_fleet("a") as running:
        await running.stop()
        await running.stop()


async def test_cancelling_a_start_leaves_nothing(make_fleet: MakeFleet) -> None:
    one_is_ready = asyncio.Event()

    def changed(station: FleetStation) -> None:
        if station.state is StationState.READY:
            one_is_ready.set()

    fleet = make_fleet("a", "silent", "b", on_change=changed)
    starting = asyncio.create_task(fleet.start())
    await one_is_ready.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children_of(os.getpid()) == []


async def test_cancelling_a_stop_cuts_the_grace_short_and_still_reaps(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("stubborn", drain_s=600)
    await fleet.start()
    stopping = asyncio.create_task(fleet.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert children_of(os.getpid()) == []
    assert fleet.station("stubborn").exit_status == -signal.SIGKILL


async def test_an_error_in_the_block_stops_the_fleet_too(make_fleet: MakeFleet) -> None:
    with pytest.raises(ZeroDivisionError):
        async with make_fleet("a"):
            raise ZeroDivisionError
    assert children_of(os.getpid()) == []


async def test_a_fleet_is_started_once(make_fleet: MakeFleet) -> None:
    async with make_fleet("a") as fleet:
        with pytest.raises(Exception, match="was started before"):
            await fleet.start()


LAUNCHER = """
import asyncio, json, sys
from host.fleet import Fleet, StationOptions
from host.plan import StationSpec, parse_roles

async def main():
    specs = [StationSpec(f"s{i}", parse_roles("head")) for i in range(3)]
    async with Fleet(specs, StationOptions(model="none"), python=sys.argv[1]) as fleet:
        print(json.dumps([s.pid for s in fleet.stations]), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_launcher_killed_by_sigkill_leaves_no_orphan(scripted_python: str) -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, scripted_python], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        stations = [psutil.Process(pid) for pid in json.loads(launcher.stdout.readline())]
        assert len(stations) == 3
        launcher.kill()
    _, left = psutil.wait_procs(stations, timeout=20)
    assert [p.pid for p in left if is_alive(p.pid)] == []


def test_the_folder_of_a_killed_launcher_goes_with_the_next_launch_and_others_stay(
    scripted_python: str, tmp_path: Path
) -> None:
    (tmp_path / "aeonflow-notes").mkdir()  # no launcher's
    command, environ = [sys.executable, "-c", LAUNCHER, scripted_python], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        (token_file,) = tmp_path.glob("aeonflow-*/token")
        beside = ScratchFolder(tmp_path)
        assert token_file.exists()
        launcher.kill()
    last = ScratchFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {tmp_path / "aeonflow-notes", beside.path, last.path}
    beside.remove()
    last.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["aeonflow-notes"]


def test_ctrl_c_in_the_terminal_does_not_reach_the_stations(scripted_python: str) -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, scripted_python], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        pids = json.loads(launcher.stdout.readline())
        assert all(os.getpgid(pid) == pid for pid in pids)
        launcher.kill()


@pytest.mark.parametrize("factory", ["asyncio", "uvloop"])
def test_the_launcher_works_on_either_event_loop(scripted_python: str, factory: str) -> None:
    async def main() -> list[int | None]:
        is_dead = asyncio.Event()

        def changed(station: FleetStation) -> None:
            if station.state is StationState.DEAD:
                is_dead.set()

        options = StationOptions(model="none")
        async with Fleet(specs("a", "b"), options, python=scripted_python, on_change=changed) as fleet:
            os.kill(fleet.station("a").pid, signal.SIGKILL)
            await is_dead.wait()
            await fleet.wait_ready("a", 20)
            assert fleet.station("a").restarts == 1
        return [s.exit_status for s in fleet.stations]

    loop_factory = asyncio.new_event_loop
    if factory == "uvloop":
        loop_factory = pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main()) == [-15, -15]
    assert children_of(os.getpid()) == []
