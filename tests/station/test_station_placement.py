"""A thread that serves rows of one session keeps to the session's core, and leaves it where others want it."""

from __future__ import annotations

import os
import threading
from collections.abc import Set

import pytest

from stations.server.placement import (
    FIRST_BACKOFF_S,
    LAST_BACKOFF_S,
    Load,
    Placement,
    core_of,
    read_load,
    set_cores,
    usable_cores,
)


class Machine:
    """Cores 0 to 3 and the load of a thread, as a test sets them."""

    def __init__(self) -> None:
        self.chosen: list[Set[int]] = []
        self.run_ns = self.wait_ns = 0
        self.idle = dict.fromkeys(range(4), 0)
        self.ticks = 0

    def spend(self, run_ns: int, wait_ns: int, idle_share: float) -> None:
        self.run_ns += run_ns
        self.wait_ns += wait_ns
        self.ticks += 100
        self.idle = {core: idle + int(100 * idle_share) for core, idle in self.idle.items()}

    def load(self) -> Load:
        return Load(self.run_ns, self.wait_ns, {core: (idle, self.ticks) for core, idle in self.idle.items()})


@pytest.fixture
def machine() -> Machine:
    return Machine()


def made(machine: Machine, usable: Set[int] = frozenset(range(4))) -> Placement:
    return Placement(usable, machine.chosen.append, machine.load)


def test_the_thread_keeps_to_the_core_of_the_session_and_goes_back_when_there_is_more_to_do(machine: Machine) -> None:
    placement = made(machine)
    core = core_of(77, set(range(4)))
    for _ in range(3):
        placement.serve(77, 0.0)
    placement.release()
    placement.release()
    assert machine.chosen == [{core}, {0, 1, 2, 3}]
    assert placement.core is None


def test_all_stations_of_a_session_name_one_core_and_sessions_are_spread() -> None:
    assert {core_of(5, set(range(8))) for _ in range(3)} == {core_of(5, frozenset(range(8)))}
    assert {core_of(session, set(range(4))) for session in range(100)} == set(range(4))


@pytest.mark.parametrize("usable", [frozenset(), frozenset({1})])
def test_without_a_choice_nothing_is_chosen(machine: Machine, usable: Set[int]) -> None:
    made(machine, usable).serve(1, 0.0)
    assert machine.chosen == []


@pytest.mark.parametrize(("wait_ns", "idle_share", "stays"), [(10, 0.9, True), (900, 0.0, True), (900, 0.9, False)])
def test_the_core_is_left_where_others_want_it_and_another_is_idle(
    machine: Machine, wait_ns: int, idle_share: float, stays: bool
) -> None:
    placement = made(machine)
    placement.serve(2, 0.0)
    for now in range(3):
        placement.tick(float(now))
        machine.spend(100, wait_ns, idle_share)
    assert (placement.core is not None) is stays


def test_a_core_that_was_left_is_tried_again_later_and_later(machine: Machine) -> None:
    placement = made(machine)
    pauses = []
    now = 0.0
    for _ in range(5):
        began = now
        while placement.core is None:
            now += 1.0
            placement.serve(2, now)
        pauses.append(now - began)
        while placement.core is not None:
            placement.tick(now)
            machine.spend(100, 900, 0.9)
    assert pauses == [1.0, FIRST_BACKOFF_S, 16.0, 32.0, LAST_BACKOFF_S]


def test_cores_that_the_system_takes_away_are_no_error(machine: Machine) -> None:
    def refuse(cores: Set[int]) -> None:
        raise OSError("not yours")

    placement = Placement(frozenset({0, 1}), refuse, machine.load)
    placement.serve(1, 0.0)
    placement.release()
    placement.serve(1, 0.0)
    assert placement.core is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads cannot choose their cores here")
def test_only_the_thread_that_chooses_is_moved() -> None:
    before, core = usable_cores(), min(usable_cores())
    inside: list[frozenset[int]] = []

    def choose() -> None:
        set_cores({core})
        inside.append(usable_cores())

    thread = threading.Thread(target=choose)
    thread.start()
    thread.join()
    assert inside == [frozenset({core})]
    assert usable_cores() == before


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="no /proc here")
def test_the_load_is_read_from_the_system() -> None:
    load = read_load()
    assert load is not None
    assert load.run_ns > 0
    assert set(load.cores) >= usable_cores()
    assert all(0 <= idle <= ticks for idle, ticks in load.cores.values())
