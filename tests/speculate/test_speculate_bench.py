"""The bench of answers with and without speculation: its ratios, and what it takes for noise."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from host.bench.lookup import Replay, replay
from host.bench.speculate import bench_speculate
from host.bench.speculate_report import Asked, Decoded, Turn, blind_bound, is_at_least, ratio_noise, report
from stations.models.folder import ModelFolder


def turn(plain_s: float, seconds: float, again_s: float, of: str = "chat", text: str = "Why?") -> Turn:
    told = {"passes": 5, "drafted": 8, "accepted": 5}
    sides = (Decoded(10, value, value / 2, told) for value in (plain_s, seconds, again_s))
    return Turn(Asked(of, text), *sides)


def test_a_ratio_is_the_mean_of_both_plain_times_over_the_speculating_one() -> None:
    found = report([turn(10, 5, 10), turn(8, 10, 12, of="edit")], with_cpu=True)
    assert [one["ratio"] for one in found["each"]] == [2.0, 1.0]
    assert found["ratio"] == found["cpu_ratio"] == round(20 / 15, 4)
    assert (found["plain_tok_s"], found["tok_s"], found["tokens_per_pass"]) == (1.0, round(20 / 15, 3), 2.0)
    assert (found["sets"]["chat"]["ratio"], found["sets"]["edit"]["ratio"]) == (2.0, 1.0)
    assert (found["drafted"], found["accepted"]) == (16, 10)


def test_an_answer_is_slower_only_where_plain_answers_beside_each_other_do_not_differ_as_much() -> None:
    steady = [turn(10, 10, 10) for _ in range(9)]
    slow = turn(10, 10.5, 10, text="Slow?")
    found = report([*steady, slow])
    assert found["worst"] == {"ratio": round(10 / 10.5, 4), "prompt": "Slow?"}
    assert found["below_0.97"] == {"count": 1, "share": 0.1}
    assert (found["slower_beyond_noise"], found["noise"]["se"]) == (["Slow?"], 0.0)
    uneven = [turn(10, 10, again) for again in (9.5, 10.5) * 5]
    found = report([*uneven, slow])
    assert found["noise"]["plain_below_0.97"]["count"] == 5
    assert found["slower_beyond_noise"] == []


def test_the_noise_of_a_ratio_follows_from_that_of_two_plain_times() -> None:
    """Times of variance s²: their logarithms differ with 2 s², a mean of two over a third has 1.5 s²."""
    turns = [turn(1.0, 1.0, math.exp(sign * 0.02)) for sign in (1, -1)]
    assert ratio_noise(turns) == pytest.approx(0.02 * math.sqrt(0.75))


def test_the_bound_of_blind_drafts_is_their_wait_for_busy_stations_and_2_percent() -> None:
    assert blind_bound(0.0, 0.01) == pytest.approx(1 / 1.02)
    assert blind_bound(0.02, 0.02) == pytest.approx(1 / (1 + 0.02 / 0.16 + 0.02))
    even, uneven = [turn(10, 10.5, 10)], [turn(10, 10.5, 10), turn(10, 10.5, 9), turn(9, 10.5, 10)]
    assert (is_at_least(0.95, even), is_at_least(0.96, even), is_at_least(0.96, uneven)) == (True, False, True)


def test_known_answers_are_replayed_run_by_run_with_times_by_formula() -> None:
    assert replay([([1, 2], [9, 8, 7, 6]), ([1], [2])], extra=0.5, shortest=1) == Replay(3, 3, 3.0, 1.0)
    looping = [([1, 2, 3], [4, 1, 2, 3, 4, 1, 2, 3, 4])]
    free = replay(looping, extra=0.0, shortest=1)  # 1 without a match, then all that is left
    assert free == Replay(8, 2, 2.0, 4.0)
    assert replay(looping, extra=0.0, shortest=2).passes == 3
    paid = replay(looping, extra=0.01, shortest=1)  # few guesses of one token's match, then more of longer ones
    assert (paid.tokens, paid.passes, paid.plain_passes) == (8, 3, pytest.approx(3.05))
    assert paid.gain == paid.worst == pytest.approx(8 / 3.05)
    assert replay(looping, extra=9.0, shortest=1) == Replay(8, 8, 8.0, 1.0)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_bench_that_is_out_of_time_says_how_many_prompts_it_left_out(model: ModelFolder, at_once: bool) -> None:
    """A minute passes at every look at the clock: the first prompt is answered, the second would end too late."""
    ticks = itertools.count()
    seen: list[tuple[int, int]] = []
    found: dict[str, Any] = await bench_speculate(
        model=str(model.path), plan="solo", speculate="lookup", prompts=[Asked("chat", f"a{i}") for i in range(5)],
        threads=1, new_tokens=6, minutes=4.0, at_once=at_once, clock=lambda: 60.0 * next(ticks),
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert found["answers"] + found["left_out"] == 5
    assert 0 < found["left_out"] < 5
    assert (seen[0], seen[-1]) == ((0, 5), (5, 5))
