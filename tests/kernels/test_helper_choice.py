"""Helpers are used while they pay, given up when they do not, and tried again."""

from __future__ import annotations

from stations.kernels.fast.helper_choice import PROBE_EVERY, SAMPLES, HelperChoice


def _calls(choice: HelperChoice, count: int, helped_s: float, alone_s: float, rows: int = 1) -> list[bool]:
    ways = []
    for _ in range(count):
        way = choice.wants_helpers(3, rows)
        choice.took(3, rows, helped_s if way else alone_s, helped=way)
        ways.append(way)
    return ways


def test_both_ways_are_tried_before_one_is_chosen() -> None:
    ways = _calls(HelperChoice(), 2 * SAMPLES, 1.0, 2.0)
    assert ways == [True] * SAMPLES + [False] * SAMPLES


def test_the_faster_way_is_kept_and_the_other_tried_now_and_then() -> None:
    for helped_s, alone_s, kept in ((1.0, 1.5, True), (1.5, 1.0, False)):
        choice = HelperChoice()
        _calls(choice, 2 * SAMPLES, helped_s, alone_s)
        ways = _calls(choice, 10 * PROBE_EVERY, helped_s, alone_s)
        assert ways.count(not kept) == 10


def test_a_core_that_another_program_takes_is_noticed_and_its_return_too() -> None:
    choice = HelperChoice()
    _calls(choice, 100, 1.0, 1.6)
    busy = _calls(choice, 40, 2.4, 1.6)
    assert busy[SAMPLES:].count(True) <= 2
    _calls(choice, SAMPLES * PROBE_EVERY, 1.0, 1.6)
    assert _calls(choice, PROBE_EVERY, 1.0, 1.6).count(True) >= PROBE_EVERY - 1


def test_prefill_and_decode_are_judged_apart() -> None:
    choice = HelperChoice()
    _calls(choice, 2 * SAMPLES, 2.0, 1.0)
    _calls(choice, 2 * SAMPLES, 100.0, 200.0, rows=128)
    assert not _calls(choice, 1, 2.0, 1.0)[0]
    assert _calls(choice, 1, 100.0, 200.0, rows=128)[0]
