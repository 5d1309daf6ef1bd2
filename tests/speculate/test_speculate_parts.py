"""Lookup, sizes of runs, times, the switch of drafts, permits, candidates: each alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from aeonflow.errors import BadTensorError
from aeonflow.messages import StatsReply
from aeonflow.tensors import DType, Kind, Port, Tensor, options_byte
from host.errors import InvalidRequestError
from host.sequence import TokenSequence
from host.speculate.candidates import collect_draft, merge_parts
from host.speculate.drafters import EXPECTED, SpeculateMode
from host.speculate.lookup import Lookup
from host.speculate.permits import Permits, compute_seconds
from host.speculate.sizes import CREDIT_A_TOKEN, MAX_RUN, MIN_RUN, START_CREDIT, START_RUN, RunSizer
from host.speculate.switch import CHECK, CHECK_EVERY, FIRST_PLAIN, MIN_PLAIN, TRIAL, DraftSwitch, Phase
from host.speculate.times import MAX_WIDE, PassTimes
from host.speculate.times import MIN_PLAIN as MIN_MEASURED

from .toy import ToyChain


def test_lookup_guesses_what_followed_the_longest_match_at_its_newest_place() -> None:
    assert Lookup([1, 2, 3, 4, 9, 2, 3, 5, 7, 2, 3]).find([], 2) == ([5, 7], 2)
    assert Lookup([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]).find([], 3) == ([4, 9, 2], 3)
    assert Lookup([1, 2, 3]).find([], 8) == ([], 0)
    assert Lookup([5, 1, 5]).find([], 2) == ([1, 5], 1)
    assert Lookup([5, 1, 5], shortest=2).find([], 8) == ([], 0)
    assert Lookup([1, 2, 1, 2]).find([], 0) == ([], 0)


def test_a_loop_is_guessed_beyond_the_end_of_the_text() -> None:
    assert Lookup([7, 8, 7, 8, 7]).find([], 6).tokens == [8, 7, 8, 7, 8, 7]
    assert Lookup([7, 7, 7]).find([], 3).tokens == [7, 7, 7]


def test_guesses_that_are_not_verified_yet_are_matched_but_never_found() -> None:
    lookup = Lookup([1, 2, 3, 4, 5])
    assert lookup.find([2, 3], 3).tokens == [4, 5, 2]
    assert lookup.find([8, 9], 3).tokens == []


def test_a_pass_costs_what_was_measured() -> None:
    times = PassTimes(1.0, 0.5)
    for _ in range(60):
        times.learn(1, 0.2)
        times.learn(9, 0.2 + 8 * 0.01)
    assert times.of(1) == pytest.approx(0.2, rel=0.01)
    assert times.of(5) == pytest.approx(0.24, rel=0.02)
    times.learn(1, 1000.0)
    assert times.of(1) < 0.3, "one stall says little"


def test_plain_passes_are_measured_at_first_and_again_after_many_wide_ones() -> None:
    times = PassTimes(1.0, 0.1)
    for _ in range(MIN_MEASURED):
        assert times.wants_plain
        times.learn(1, 1.0)
    for _ in range(MAX_WIDE):
        assert not times.wants_plain
        times.learn(5, 1.4)
    times.learn(5, 1.4)
    assert times.wants_plain


def test_runs_grow_to_32_while_all_is_right_and_shrink_to_4_while_little_is() -> None:
    sizer = RunSizer(PassTimes(1.0, 0.0), EXPECTED)
    assert sizer.choose(6, 99) == START_RUN
    for _ in range(4):
        sizer.learn(6, sizer.longest, sizer.longest)
    assert sizer.longest == sizer.choose(6, 99) == MAX_RUN
    assert sizer.choose(6, 5) == 5
    for _ in range(20):
        sizer.learn(1, 2, 0)
    assert sizer.longest == MAX_RUN, "short runs say nothing of long ones"
    for _ in range(6):
        sizer.learn(6, sizer.longest, 0)
    assert sizer.longest == MIN_RUN


def test_where_rows_cost_as_much_as_passes_guesses_must_be_good() -> None:
    sizer = RunSizer(PassTimes(1.0, 0.5), EXPECTED)
    assert sizer.choose(2, 8) == 0
    for _ in range(20):
        sizer.learn(2, 4, 4)
        sizer.book(5, 5)
    assert 0 < sizer.choose(2, 8) < 8


def test_a_model_s_time_counts_as_the_guesses_do() -> None:
    sizer = RunSizer(PassTimes(1.0, 0.0), EXPECTED)
    assert sizer.choose("model", 8, 0.01) == START_RUN
    assert sizer.choose("model", 8, 0.9) == 0


@pytest.mark.parametrize("right", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("extra_s", [0.0, 0.05, 0.25, 1.0])
def test_an_answer_loses_at_most_3_percent_whatever_is_guessed(right: float, extra_s: float) -> None:
    rng = random.Random(1)
    times = PassTimes(1.0, extra_s)
    for length in (80, 300):
        sizer = RunSizer(times, EXPECTED)
        tokens, seconds = 0, 0.0
        while tokens < length:
            kind = rng.choice([2, 3, 4, 6])
            guessed = sizer.choose(kind, 32)
            accepted = 0
            while accepted < guessed and rng.random() < right:
                accepted += 1
            if guessed:
                sizer.learn(kind, guessed, accepted)
            sizer.book(1 + guessed, 1 + accepted)
            tokens += 1 + accepted
            seconds += times.of(1 + guessed)
        assert seconds <= 1.03 * tokens
    assert START_CREDIT / 80 + CREDIT_A_TOKEN < 0.03


class Machine:
    """Seconds a token by what the switch wants: fed until it has made `tokens` tokens."""

    def __init__(self, switch: DraftSwitch, *, plain_s: float, drafting_s: float, alpha: float = 0.83) -> None:
        self.switch, self.plain_s, self.drafting_s, self.alpha = switch, plain_s, drafting_s, alpha
        self.seconds, self.phases = 0.0, [switch.phase]
        self._rng = random.Random(3)

    def run(self, tokens: int) -> float:
        """Seconds in plain tokens."""
        began = self.seconds
        for _ in range(tokens):
            drafts = self.switch.wants_drafts
            seconds = self.drafting_s if drafts else self.plain_s
            if drafts:
                self.switch.learn_pass(1.1 * self.plain_s if self.drafting_s < 1.2 * self.plain_s else self.drafting_s)
                self.switch.learn_draft(0.7 * self.drafting_s)
                self.switch.learn_guess(self._rng.random() < self.alpha)
            self.switch.learn_token(seconds)
            self.seconds += seconds
            if self.phases[-1] is not self.switch.phase:
                self.phases.append(self.switch.phase)
        return (self.seconds - began) / self.plain_s


def test_drafts_that_pay_are_kept_and_checked_now_and_then() -> None:
    machine = Machine(DraftSwitch(predicted_gain=1.3), plain_s=1.0, drafting_s=0.75)
    machine.run(FIRST_PLAIN + TRIAL + 3)
    assert machine.switch.phase is Phase.DRAFTING
    assert machine.switch.token_s == pytest.approx(0.75)
    assert machine.run(2 * (CHECK_EVERY + CHECK)) < 0.78 * 2 * (CHECK_EVERY + CHECK)
    assert set(machine.phases) == set(Phase)
    assert machine.phases.count(Phase.PLAIN) == 1


@pytest.mark.parametrize("drafting_s", [0.99, 1.3, 3.0])
def test_drafts_that_do_not_pay_are_tried_ever_more_rarely(drafting_s: float) -> None:
    machine = Machine(DraftSwitch(predicted_gain=1.3), plain_s=1.0, drafting_s=drafting_s)
    machine.run(6000)
    assert machine.phases.count(Phase.TRIAL) <= 7
    assert Phase.DRAFTING not in machine.phases
    assert machine.run(2048) < 1.02 * 2048


def test_a_hopeless_trial_ends_after_8_drafts() -> None:
    switch = DraftSwitch(predicted_gain=1.3)
    machine = Machine(switch, plain_s=1.0, drafting_s=3.0)
    machine.run(FIRST_PLAIN + 1)
    assert switch.phase is Phase.TRIAL
    machine.run(8)
    assert switch.phase is Phase.PLAIN
    machine.run(MIN_PLAIN)
    assert switch.phase is Phase.PLAIN


def test_drafts_that_stop_paying_are_given_up_at_the_next_check() -> None:
    machine = Machine(DraftSwitch(predicted_gain=1.3), plain_s=1.0, drafting_s=0.7)
    machine.run(FIRST_PLAIN + TRIAL + 3)
    machine.drafting_s = 1.1
    machine.run(CHECK_EVERY + CHECK + 3)
    assert machine.switch.phase is Phase.PLAIN


def test_no_trial_is_made_where_the_plan_s_costs_forbid_it() -> None:
    machine = Machine(DraftSwitch(predicted_gain=1.02), plain_s=1.0, drafting_s=0.5)
    machine.run(500)
    assert machine.phases == [Phase.PLAIN]


def test_permits_are_for_several_sessions_and_have_two_limits() -> None:
    sessions = 4
    permits = Permits(2, lambda: sessions)
    permits.observe({0: 0.0, 1: 0.0}, 0.0)
    permits.observe({0: 0.9, 1: 0.1}, 1.0)
    assert not permits()
    permits.observe({0: 1.7, 1: 0.2}, 2.0)
    assert not permits(), "80 % is between the limits"
    permits.observe({0: 2.4, 1: 0.8}, 3.0)
    assert permits()
    permits.observe({0: 3.3, 1: 1.7}, 4.0)
    assert not permits(), "two stations at 90 % on two cores"
    sessions = 1
    assert permits()


def part_of(ids: list[int], logits: list[float], part: int = 0, position: int = 5) -> list[Tensor]:
    def tensor(port: Port, dtype: DType, data: bytes) -> Tensor:
        return Tensor(
            1, 1, 0, 0, position, 1, 0, Kind.DRAFT, port, options_byte(part=part), dtype, 1, 1, 1, len(ids), data
        )

    return [
        tensor(Port.TOKEN, DType.U32, np.array(ids, "<u4").tobytes()),
        tensor(Port.LOGITS, DType.F32, np.array(logits, "<f4").tobytes()),
    ]


def test_candidates_of_all_head_parts_are_merged_by_falling_logit_and_rising_id() -> None:
    merged = merge_parts([part_of([3, 1], [2.0, 1.0]), part_of([9, 7], [2.5, 1.0], part=1)])
    assert (merged.position, merged.ids.tolist(), merged.logits.tolist()) == (5, [9, 3, 1, 7], [2.5, 2.0, 1.0, 1.0])


def test_parts_of_an_older_draft_are_forgotten_when_a_newer_one_comes() -> None:
    sequence = TokenSequence(1, ToyChain(random.Random(1)), lambda: 0.0)
    assert collect_draft(sequence, part_of([1], [1.0], part=0, position=5), 2, 512) is None
    assert collect_draft(sequence, part_of([2], [1.0], part=1, position=6), 2, 512) is None
    found = collect_draft(sequence, part_of([3], [2.0], part=0, position=6), 2, 512)
    assert found is not None
    assert found.ids.tolist() == [3, 2]
    assert not sequence.draft_parts


def test_what_is_no_candidate_list_is_refused() -> None:
    good = part_of([1, 2], [1.0, 0.5])
    sequence = TokenSequence(1, ToyChain(random.Random(1)), lambda: 0.0)
    for bad in (good[:1], good[::-1], part_of(list(range(65)), [0.0] * 65), part_of([512], [1.0])):
        with pytest.raises(BadTensorError, match="a draft's head answered with"):
            collect_draft(sequence, bad, 1, 512)


def test_a_model_is_named_behind_a_colon() -> None:
    assert SpeculateMode.parse("model:synthetic:layers=2") == ("model", "synthetic:layers=2")
    assert str(SpeculateMode.parse("model:tiny")) == "model:tiny"
    assert [SpeculateMode.parse(kind).looks_up for kind in ("off", "lookup", "auto")] == [False, True, True]
    with pytest.raises(InvalidRequestError, match="model:NAME"):
        SpeculateMode.parse("model:")


@pytest.mark.parametrize(
    "said", [{}, {"compute_s": None}, {"compute_s": {"attn": "much"}}, {"compute_s": {"a": 1e999}}]
)
def test_a_station_that_says_nonsense_of_its_time_has_computed_nothing(said: dict[str, Any]) -> None:
    assert compute_seconds(StatsReply("a", 1, 1.0, said)) == 0.0
    assert compute_seconds(StatsReply("a", 1, 1.0, {"compute_s": {"attn": 1.5, "down": 2}})) == 3.5
