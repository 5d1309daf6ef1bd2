"""A station that dies while the fleet runs: started again on its port, with growing pauses, given up in the end."""

from __future__ import annotations

import os
import random
import signal

import pytest

from host.fleet import Fleet, FleetStation, RestartPolicy, StationStartError, StationState

from .conftest import MakeFleet

QUICK = RestartPolicy(first_s=0.01, cap_s=0.02, max_in_a_row=3)


class Changes:
    """Waits for the n-th time a station enters a state."""

    def __init__(self) -> None:
        import asyncio

        self.seen: list[tuple[str, str]] = []
        self._event = asyncio.Event()

    def __call__(self, station: FleetStation) -> None:
        self.seen.append((station.name, str(station.state)))
        self._event.set()

    async def until(self, name: str, state: StationState, times: int = 1) -> None:
        import asyncio

        async with asyncio.timeout(20):
            while self.seen.count((name, str(state))) < times:
                self._event.clear()
                await self._event.wait()


async def killed(fleet: Fleet, name: str, changes: Changes) -> None:
    times = changes.seen.count((name, "dead"))
    os.kill(fleet.station(name).pid, signal.SIGKILL)
    await changes.until(name, StationState.DEAD, times + 1)


async def test_a_killed_station_comes_back_on_the_same_port_and_the_others_are_left_alone(
    make_fleet: MakeFleet,
) -> None:
    changes = Changes()
    async with make_fleet("a", "b", on_change=changes) as fleet:
        before, other = (fleet.station("a").pid, fleet.station("a").port), fleet.station("b").pid
        await killed(fleet, "a", changes)
        station = await fleet.wait_ready("a", 20)
        assert station.port == before[1]
        assert station.pid != before[0]
        assert (station.restarts, station.exit_status) == (1, -9)
        assert fleet.station("b").pid == other
        assert any("is gone: killed by SIGKILL" in line for line in station.log_tail(50))


async def test_a_dead_station_has_no_address_and_no_pid_until_it_is_back(make_fleet: MakeFleet) -> None:
    changes = Changes()
    found: list[tuple[str, int]] = []

    def changed(station: FleetStation) -> None:
        if station.state is StationState.DEAD:
            found.append((station.url, station.pid))
        changes(station)

    async with make_fleet("a", on_change=changed) as fleet:
        await killed(fleet, "a", changes)
        await fleet.wait_ready("a", 20)
        assert fleet.station("a").url != ""
    assert found == [("", 0)]


async def test_a_station_that_cannot_come_back_is_given_up_after_the_allowed_tries(make_fleet: MakeFleet) -> None:
    changes = Changes()
    async with make_fleet("once", on_change=changes, restart=QUICK) as fleet:
        await killed(fleet, "once", changes)
        await changes.until("once", StationState.FAILED)
        assert changes.seen.count(("once", "starting")) == 1 + QUICK.max_in_a_row
        with pytest.raises(StationStartError, match=r"station once is failed; last log lines: .*exit status 9"):
            await fleet.wait_ready("once", 1)
    assert fleet.station("once").state is StationState.STOPPED


async def test_without_a_policy_a_dead_station_stays_dead(make_fleet: MakeFleet) -> None:
    changes = Changes()
    async with make_fleet("a", on_change=changes, restart=None) as fleet:
        os.kill(fleet.station("a").pid, signal.SIGKILL)
        await changes.until("a", StationState.FAILED)
        assert fleet.station("a").restarts == 0


async def test_waiting_for_a_station_has_a_deadline(make_fleet: MakeFleet) -> None:
    changes = Changes()
    slow = RestartPolicy(first_s=60, cap_s=60, max_in_a_row=9)
    async with make_fleet("once", on_change=changes, restart=slow) as fleet:
        await killed(fleet, "once", changes)
        await changes.until("once", StationState.DEAD, 2)  # the first restart is at once and fails; now it pauses
        with pytest.raises(StationStartError, match=r"station once is dead after 0\.1 s"):
            await fleet.wait_ready("once", 0.1)


def test_pauses_grow_twofold_with_full_jitter_up_to_the_cap() -> None:
    policy = RestartPolicy(first_s=0.2, cap_s=3.0)
    highest = [max(policy.delay_s(n, random.Random(i)) for i in range(200)) for n in range(8)]
    assert highest[0] == 0.0
    for n, bound in ((1, 0.4), (2, 0.8), (3, 1.6), (4, 3.0), (7, 3.0)):
        assert 0.9 * bound < highest[n] <= bound
    assert min(policy.delay_s(4, random.Random(i)) for i in range(200)) < 0.1
