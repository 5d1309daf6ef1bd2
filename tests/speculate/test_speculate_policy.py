"""The state machine of speculation on a toy chain, with an adversary for a network: nothing a caller sees differs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aeonflow.errors import GapError, RollbackError, StationLostError
from aeonflow.kv_options import Barrier
from host.decode import Decoder, Outbox
from host.errors import EngineClosedError
from host.prefill import Window
from host.request import Request
from host.sampling import SamplingParams
from host.sequence import TokenSequence
from host.speculate.policy import WINDOW, Means

from .means import all_at_once, drafting, guessing, looking_up, plain
from .toy import VOCAB, Letters, Tick, ToyChain, run_toy

MEANS: dict[str, Callable[[int], Means]] = {
    "lookup": looking_up,
    "drafts": lambda seed: drafting(),
    "auto": all_at_once,
}
SAMPLED = SamplingParams(temperature=0.8, top_k=5, top_p=0.95, seed=11)


def chain_of(seed: int, **how: Any) -> ToyChain:
    return ToyChain(random.Random(seed), **how)


@pytest.mark.parametrize("means", MEANS)
@given(
    seed=st.integers(0, 2**32),
    hit_rate=st.sampled_from([0.0, 0.5, 0.83, 1.0]),
    loss=st.sampled_from([0.0, 0.3]),
    is_sampled=st.booleans(),
    max_tokens=st.integers(1, 60),
    stop=st.sampled_from(["", "ab", "cd", "eee"]),
    eos=st.sampled_from([(), (3,)]),
    period=st.sampled_from([0, 5, 16]),
)
@settings(max_examples=60, deadline=None)
def test_i1_tokens_text_hash_and_rows_kept_are_those_of_plain_decoding(
    means: str, seed: int, hit_rate: float, loss: float, is_sampled: bool, max_tokens: int, stop: str,
    eos: tuple[int, ...], period: int,
) -> None:  # fmt: skip
    options: dict[str, Any] = {
        "prompt": [seed % 7, 2, 3, 2, 3, seed % 5],
        "max_tokens": max_tokens,
        "sampling": SAMPLED if is_sampled else None,
        "stops": (stop,) if stop else (),
        "eos": eos,
        "barriers": (Barrier(7, period),) if period else (),
    }
    expected, _ = run_toy(chain_of(0), plain(), **options)
    found, _ = run_toy(chain_of(seed, hit_rate=hit_rate, loss=loss), MEANS[means](seed), **options)
    assert found == expected


@given(seed=st.integers(0, 2**32), wrong=st.sampled_from([0.0, 0.2, 0.6]))
@settings(max_examples=40, deadline=None)
def test_wrong_guesses_at_any_place_of_a_run_change_nothing(seed: int, wrong: float) -> None:
    expected, _ = run_toy(chain_of(0), plain(), max_tokens=50)
    truth = [1, 2, 3, 1, 2, *expected.tokens]
    found, decoder = run_toy(chain_of(seed), guessing(seed, truth, VOCAB, wrong), max_tokens=50)
    assert found == expected
    counts = decoder.speculation.counts
    assert counts.tokens == 49
    if not wrong:
        assert counts.restarts == 0
        assert counts.of("lookup").accepted == counts.of("lookup").drafted > 0


def test_a_text_that_repeats_itself_is_guessed_from_itself() -> None:
    found = [run_toy(chain_of(0), looking_up(seed), max_tokens=80)[1].speculation.counts for seed in range(5)]
    assert all(counts.of("lookup").accepted > 15 for counts in found)
    assert all(counts.passes < 75 for counts in found)


def test_i7_the_window_and_what_is_under_way_stay_bounded() -> None:
    for seed in range(30):
        chain = chain_of(seed, loss=0.0, hit_rate=0.9)

        def watch(decoder: Decoder, chain: ToyChain = chain) -> None:
            sequence = decoder.sequence
            if not decoder.token_ids or decoder.is_over:
                return
            assert len(sequence.tokens) - 1 - decoder.speculation.known <= WINDOW
            assert len(sequence._in_flight) <= WINDOW + 1
            assert len(chain.live) <= 1

        run_toy(chain, drafting(), max_tokens=60, watch=watch)


def test_i9_every_epoch_ends_with_more_known_than_it_began_with() -> None:
    for seed in range(20):
        chain = chain_of(seed)
        _, decoder = run_toy(chain, all_at_once(seed), max_tokens=60)
        bases = [one.base for one in chain.passes]
        assert all(a < b for a, b in itertools.pairwise(bases) if a != b)
        assert decoder.speculation.counts.restarts == len({one.epoch for one in chain.passes}) - 1


def test_i11_without_drafts_passes_are_those_of_plain_decoding() -> None:
    sent = []
    for means in (plain(), drafting(permit=lambda: False)):
        chain = chain_of(5)
        run_toy(chain, means)
        sent.append(chain.passes)
    assert sent[0] == sent[1]
    assert not any(one.grow for one in sent[0])


def test_drafts_that_are_right_keep_the_chain_busy_with_a_row_each() -> None:
    chain = chain_of(3, hit_rate=1.0, loss=0.0)
    _, decoder = run_toy(chain, drafting(), max_tokens=40)
    counts = decoder.speculation.counts
    assert counts.of("draft").accepted == counts.of("draft").drafted >= 20
    assert counts.restarts == counts.drafts.overtaken
    assert all(one.rows == 1 for one in chain.passes[2:])


def test_drafts_that_say_nonsense_are_lost_and_nothing_more() -> None:
    expected, _ = run_toy(chain_of(0), plain(), max_tokens=30)
    for nonsense in (float("nan"), float("inf"), -float("inf")):
        chain = chain_of(4, hit_rate=1.0, loss=0.0)

        def watch(decoder: Decoder, chain: ToyChain = chain, nonsense: float = nonsense) -> None:
            chain.drafts = [(epoch, draft._replace(logits=draft.logits * nonsense)) for epoch, draft in chain.drafts]

        found, decoder = run_toy(chain, drafting(), max_tokens=30, watch=watch)
        assert found == expected
        assert decoder.speculation.counts.drafts.late > 5


def test_no_row_is_sent_past_a_barrier_before_all_below_is_known() -> None:
    for seed in range(20):
        chain = chain_of(seed, hit_rate=1.0, loss=0.0)
        barrier = Barrier(7, 4)
        run_toy(chain, all_at_once(seed), max_tokens=60, barriers=(barrier,))
        for one in chain.passes:
            crossed = [at for at in range(one.first + 1, one.last + 1) if barrier.upto(at) == at]
            assert not crossed
            if barrier.upto(one.first) == one.first:
                assert one.settled == one.first


def test_a_gap_is_mended_by_a_new_epoch_and_three_of_them_end_speculation() -> None:
    expected, _ = run_toy(chain_of(0), plain(), max_tokens=50)
    for errors in (1, 3):
        chain = chain_of(1)
        left = errors

        def watch(decoder: Decoder, chain: ToyChain = chain, errors: int = errors) -> None:
            nonlocal left
            if left and chain.fail_next is None and len(decoder.token_ids) > 6 * (errors - left + 1):
                chain.fail_next = GapError("gap: have 4, got 6")
                left -= 1

        found, decoder = run_toy(chain, all_at_once(1), max_tokens=50, watch=watch)
        assert found == expected
        assert decoder.speculation.counts.errors == errors
        assert ("switch" in decoder.speculation.to_json()) == (errors < 3)


def test_a_lost_station_ends_the_generation_with_its_own_error() -> None:
    chain = chain_of(1)

    def watch(decoder: Decoder) -> None:
        if len(decoder.token_ids) >= 9:
            chain.fail_next = StationLostError("station down is lost")

    with pytest.raises(StationLostError, match="station down"):
        run_toy(chain, all_at_once(1), watch=watch)


def after_lost_rows() -> tuple[Decoder, TokenSequence, Outbox]:
    """A generation whose stations have just said that they lost rows: they are being asked what they hold."""
    chain, clock = ToyChain(random.Random(3)), Tick()
    request = Request((1, 2, 3, 1, 2), 40, SamplingParams(), (), frozenset(), False, True, None)
    sequence, outbox = TokenSequence(1, chain, clock), Outbox()
    stream: Any = Letters(())
    decoder = Decoder(
        request, sequence, stream, outbox, means=looking_up(3), max_rows=9, cap=lambda: None,
        mend=lambda error: isinstance(error, RollbackError), clock=clock, on_end=lambda: None,
    )  # fmt: skip
    decoder.start(Window(3, 2))
    while len(decoder.token_ids) < 12:
        assert chain.step(sequence)
    sequence.failed(RollbackError("resume from tokens"))
    return decoder, sequence, outbox


def test_an_error_while_lost_rows_are_computed_anew_is_told_as_it_is() -> None:
    """The rows that a new epoch would begin from are not there yet: there is nothing to mend."""
    decoder, sequence, outbox = after_lost_rows()
    sequence.restart(0)
    sequence.resumed()
    decoder.resumed(Window(3, 2))
    assert sequence.oldest_in_flight is not None
    sequence.failed(GapError("gap: have 0, got 3 (attn 0)"))
    assert isinstance(outbox.error, GapError), outbox.error


def test_an_engine_that_is_left_while_stations_are_asked_what_they_hold_ends_the_generation() -> None:
    decoder, sequence, outbox = after_lost_rows()
    sequence.failed(GapError("another pass of what is being mended"))
    assert not decoder.is_over
    sequence.failed(EngineClosedError("the engine was left"))
    assert isinstance(outbox.error, EngineClosedError)
