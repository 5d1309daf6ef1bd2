"""The measure of a peer's silence, on a clock that the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeonflow import Heartbeat, LinkOptions
from aeonflow.heartbeat import Heart

OPTIONS = LinkOptions()  # beats every second, closed after five


class Timer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback = due, callback

    def cancel(self) -> None:
        self.callback = lambda: None


class Clock:
    """An event loop's clock and timers; time passes only by `pass_until` and by timers that fire late."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(due, callback)
        self.timers.append(timer)
        return timer

    def fire_next(self, late_s: float = 0.0) -> None:
        timer = self.timers.pop(0)
        self.now = max(self.now, timer.due) + late_s
        timer.callback()


class Patient:
    def __init__(self) -> None:
        self.clock = Clock()
        self.beats: list[float] = []
        self.silences: list[float] = []
        self.heart = Heart(
            cast(asyncio.AbstractEventLoop, self.clock),
            OPTIONS,
            lambda heartbeat: self.beats.append(self.clock.now),
            self.silences.append,
        )
        self.heart.start()
        self.started = self.clock.now

    def run(self, max_ticks: int, late_s: float = 0.0) -> None:
        for _ in range(max_ticks):
            if self.silences:
                return
            self.clock.fire_next(late_s)


def test_beats_are_sent_every_second_until_five_seconds_of_silence() -> None:
    patient = Patient()
    patient.run(10)
    assert patient.beats == [1001.0, 1002.0, 1003.0, 1004.0]
    assert patient.silences == [5.0]
    assert patient.clock.timers == []


def test_what_arrives_starts_the_silence_anew() -> None:
    patient = Patient()
    for _ in range(20):
        patient.clock.fire_next()
        patient.heart.heard_at = patient.clock.now
    assert patient.silences == []
    start = patient.clock.now
    patient.run(10)
    assert patient.clock.now == start + 5.0


@given(st.floats(0.0, 0.49), st.floats(0.0, 1e6))
def test_timers_that_are_always_a_little_late_do_not_put_the_end_off(late_s: float, origin: float) -> None:
    patient = Patient()
    patient.clock.now += origin
    patient.heart.stop()
    patient.clock.timers.clear()
    patient.heart.start()
    start = patient.clock.now
    patient.run(12, late_s)
    assert patient.silences
    assert patient.clock.now - start <= 5.0 + 1.0


def test_a_stall_of_this_side_is_forgiven_and_the_peer_gets_a_beat_to_be_read() -> None:
    patient = Patient()
    patient.clock.fire_next(late_s=60.0)
    assert patient.silences == []
    assert patient.heart.silence_s <= OPTIONS.silence_s - OPTIONS.heartbeat_s
    patient.heart.heard_at = patient.clock.now
    patient.clock.fire_next()
    assert patient.silences == []


def test_stalls_of_this_side_are_forgiven_as_often_as_they_come() -> None:
    """A machine where nobody gets a core for three seconds, again and again: this side was awake for 4 s of 16."""
    patient = Patient()
    for _ in range(4):
        patient.clock.fire_next(late_s=3.0)
    assert patient.clock.now == 1016.0
    assert patient.silences == []
    assert patient.heart.silence_s == 4.0


def test_a_stall_hides_no_silence_that_was_measured_awake() -> None:
    patient = Patient()
    for _ in range(3):
        patient.clock.fire_next()
    patient.clock.fire_next(late_s=30.0)
    assert patient.heart.silence_s == 4.0
    patient.run(3)
    assert patient.silences == [5.0]


def test_the_stall_in_which_the_time_runs_out_leaves_a_beat_to_read_what_waits() -> None:
    patient = Patient()
    for _ in range(4):
        patient.clock.fire_next()
    patient.clock.fire_next(late_s=10.0)
    assert patient.silences == []
    patient.heart.heard_at = patient.clock.now  # it was there, unread
    patient.clock.fire_next()
    assert patient.silences == []


@pytest.mark.parametrize("late_s", [0.6, 3.0, 60.0])
def test_a_peer_that_is_silent_through_stalls_is_given_up_in_the_end(late_s: float) -> None:
    patient = Patient()
    patient.run(12, late_s)
    assert len(patient.silences) == 1


def test_a_stopped_heart_beats_no_more() -> None:
    patient = Patient()
    patient.heart.stop()
    patient.heart.stop()
    patient.clock.fire_next()
    assert patient.beats == []


def test_a_heart_that_its_own_beat_stops_beats_no_more() -> None:
    clock = Clock()

    def beat(heartbeat: Heartbeat) -> None:
        heart.stop()

    heart = Heart(cast(asyncio.AbstractEventLoop, clock), OPTIONS, beat, lambda silence_s: None)
    heart.start()
    clock.fire_next()
    assert clock.timers == []


def test_the_source_is_asked_at_each_beat() -> None:
    sent: list[Heartbeat] = []
    clock = Clock()
    heart = Heart(cast(asyncio.AbstractEventLoop, clock), OPTIONS, sent.append, lambda silence_s: None)
    numbers = iter(range(10))
    heart.source = lambda: Heartbeat(next(numbers))
    heart.start()
    clock.fire_next()
    clock.fire_next()
    assert sent == [Heartbeat(0), Heartbeat(1)]
