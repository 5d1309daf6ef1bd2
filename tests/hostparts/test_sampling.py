from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeonflow.errors import PoisonedError
from host.errors import InvalidRequestError
from host.noise import MAX_GUMBEL, MIN_GUMBEL, gumbel, noise_key, uniform_bits
from host.sampling import SamplingParams, choose

Row = npt.NDArray[np.float32]


# splitmix64 in plain integers, computed apart from the module
GOLDEN_BITS = [0x020A28ED9E2B2BC4, 0x17E03160B6345C52, 0x37E68B963A2CE9B2]
GOLDEN_GUMBEL = [-1.5753393218783878, -0.863865850409436, -0.4197643276586148]


def row(*logits: float) -> Row:
    return np.array(logits, dtype=np.float32)


def survivors(logits: Row, **filters: Any) -> set[int]:
    """Tokens that can be chosen at all: at a temperature this high every survivor is drawn soon."""
    params = SamplingParams(seed=1, **filters)
    return {choose(logits, params, position).token for position in range(400)}


def chi_square(logits: Row, expected: npt.NDArray[np.float64], draws: int, **params: Any) -> float:
    sampling = SamplingParams(**params)
    counts = np.bincount([choose(logits, sampling, position).token for position in range(draws)], minlength=len(logits))
    assert not counts[expected == 0].any()
    kept = expected > 0
    return float((((counts - draws * expected) ** 2)[kept] / (draws * expected[kept])).sum())


def softmax(logits: Row, temperature: float = 1.0) -> npt.NDArray[np.float64]:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return np.asarray(weights / weights.sum())


def test_the_noise_is_the_documented_function() -> None:
    assert noise_key(0, 0) == 0xA706DD2F4D197E6F
    assert [int(x) for x in uniform_bits(42, 7, np.array([0, 1, 49_151]))] == GOLDEN_BITS
    np.testing.assert_allclose(gumbel(42, 7, np.array([0, 1, 49_151])), GOLDEN_GUMBEL, rtol=1e-13)


def test_the_noise_of_a_token_does_not_depend_on_its_company() -> None:
    everyone = gumbel(3, 5, np.arange(1000))
    np.testing.assert_array_equal(gumbel(3, 5, np.array([17, 900])), everyone[[17, 900]])


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**32 - 1), token=st.integers(0, 2**20))
def test_the_noise_is_finite_and_bounded_for_every_counter(seed: int, position: int, token: int) -> None:
    (g,) = gumbel(seed, position, np.array([token]))
    assert MIN_GUMBEL <= g <= MAX_GUMBEL


def test_greedy_takes_the_lowest_id_of_the_largest() -> None:
    assert choose(row(1, 2), SamplingParams(), 0).token == 1
    assert choose(row(1, 3, 3, 2), SamplingParams(), 0).token == 1
    assert choose(row(-np.inf, -0.0, 0.0), SamplingParams(), 0).token == 1


def test_a_tiny_temperature_is_greedy() -> None:
    assert choose(row(1, 2), SamplingParams(temperature=1e-7), 9).token == 1


@given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=8), st.floats(1e-5, 1e-3))
def test_a_small_temperature_overflows_nothing_and_picks_near_the_top(logits: list[float], temperature: float) -> None:
    token = choose(row(*logits), SamplingParams(temperature=temperature, seed=1), 3).token
    assert logits[token] >= max(logits) - (MAX_GUMBEL - MIN_GUMBEL) * temperature


def test_the_same_seed_and_position_give_the_same_token_and_others_differ() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    params = SamplingParams(temperature=1.0, seed=7)
    tokens = [choose(logits, params, position).token for position in range(50)]
    assert tokens == [choose(logits, params, position).token for position in range(50)]
    assert len(set(tokens)) > 40
    other = SamplingParams(temperature=1.0, seed=8)
    assert tokens != [choose(logits, other, position).token for position in range(50)]


# 99.9 % quantiles of chi-square with the degrees of freedom named
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_from_the_softmax_at_the_temperature(temperature: float) -> None:
    logits = row(0, 1, 2, -1, 0.5, -np.inf)
    statistic = chi_square(logits, softmax(logits, temperature), 20_000, temperature=temperature, seed=11)
    assert statistic < CHI_SQUARE[4]


def test_filters_draw_from_the_rest_in_its_old_proportions() -> None:
    logits = row(0, 1, 2, -1, 0.5)
    kept = np.where(np.isin(np.arange(5), [1, 2, 4]), softmax(logits), 0)
    assert chi_square(logits, kept / kept.sum(), 20_000, temperature=1.0, seed=3, top_k=3) < CHI_SQUARE[2]
    assert chi_square(logits, kept / kept.sum(), 20_000, temperature=1.0, seed=4, min_p=0.2) < CHI_SQUARE[2]


def test_top_k_keeps_the_largest_and_settles_ties_by_id() -> None:
    assert survivors(row(5, 1, 5, 5, 0), temperature=50, top_k=2) == {0, 2}
    assert survivors(row(5, 1, 5, 5, 0), temperature=50, top_k=4) == {0, 1, 2, 3}
    assert survivors(row(1, 2, 3), temperature=50, top_k=9) == {0, 1, 2}


def test_top_p_keeps_the_shortest_prefix_that_reaches_it() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2], dtype=np.float64)).astype(np.float32)
    assert survivors(logits, temperature=1.0, top_p=0.3) == {1}
    assert survivors(logits, temperature=1.0, top_p=0.6) == {1, 2}
    assert survivors(logits, temperature=1.0, top_p=0.85) == {1, 2, 3}
    assert survivors(row(1, 1, 1, 1), temperature=1.0, top_p=0.5) == {0, 1}
    assert survivors(row(1, 2), temperature=1.0, top_p=1e-9) == {1}


def test_top_p_is_measured_after_the_temperature_and_within_top_k() -> None:
    logits = row(3, 2, 1, 0)
    assert survivors(logits, temperature=1.0, top_p=0.64) == {0}
    assert survivors(logits, temperature=10.0, top_p=0.64) == {0, 1, 2}
    assert survivors(logits, temperature=1.0, top_p=0.7, top_k=2) == {0}


def test_min_p_keeps_what_is_likely_enough_beside_the_best() -> None:
    logits = np.log(np.array([0.5, 0.24, 0.26], dtype=np.float64)).astype(np.float32)
    assert survivors(logits, temperature=1.0, min_p=0.5) == {0, 2}
    assert survivors(logits, temperature=1.0, min_p=1.0) == {0}


@given(st.integers(0, 2**32), st.sampled_from([0.3, 1.0, 4.0]))
def test_every_filter_agrees_with_its_definition_on_large_rows(seed: int, temperature: float) -> None:
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(0, 3, 2000), 1).astype(np.float32)  # rounded: many ties
    top_k, top_p, min_p = int(rng.integers(1, 1500)), float(rng.uniform(0.05, 1)), float(rng.uniform(0, 0.3))
    for params in (
        SamplingParams(temperature, top_k, top_p, min_p, seed),
        SamplingParams(temperature, 0, top_p, 0.0, seed),
        SamplingParams(temperature, 0, 1.0, min_p, seed),
        SamplingParams(temperature, 0, 1.0, 0.0, seed),
    ):
        assert choose(logits, params, 5).token == plainly_chosen(logits, params, 5)


def plainly_chosen(logits: Row, params: SamplingParams, position: int) -> int:
    """The definitions of the module's docstring, by sorting everything."""
    assert params.seed is not None
    scaled = (logits.astype(np.float64) - float(logits.max())) / params.temperature
    order = sorted(range(len(logits)), key=lambda token: (-scaled[token], token))[: params.top_k or None]
    if params.top_p < 1:
        target = params.top_p * np.exp(scaled[sorted(order)]).sum()
        order = order[: int(np.searchsorted(np.cumsum(np.exp(scaled[order])), target)) + 1]
    kept = np.array(sorted(t for t in order if not params.min_p or scaled[t] >= math.log(params.min_p)))
    return int(kept[(scaled[kept] + gumbel(params.seed, position, kept)).argmax()])


def test_masked_tokens_are_never_chosen() -> None:
    logits = np.full(100, -np.inf, dtype=np.float32)
    logits[[3, 50]] = -80
    for filters in ({}, {"top_k": 60}, {"top_p": 0.99}, {"min_p": 0.01}):
        assert survivors(logits, temperature=1.0, **filters) == {3, 50}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, seed=1)])
def test_a_row_that_is_not_a_number_is_poisoned(bad: float, params: SamplingParams) -> None:
    with pytest.raises(PoisonedError, match=r"logits at position 12 hold (nan|inf) at token 2"):
        choose(row(1, 2, bad, 3), params, 12)


def test_a_row_without_a_finite_value_is_poisoned() -> None:
    with pytest.raises(PoisonedError):
        choose(row(-np.inf, -np.inf), SamplingParams(), 0)


def test_logprobs_are_of_the_unfiltered_row_at_temperature_one() -> None:
    logits = row(0, 1, 2, 2)
    choice = choose(logits, SamplingParams(temperature=5.0, top_k=1, seed=1, logprobs=3), 0)
    expected = np.log(softmax(logits))
    assert choice.token == 2
    assert choice.logprobs is not None
    assert choice.logprobs.chosen == pytest.approx(expected[2])
    assert [token for token, _ in choice.logprobs.top] == [2, 3, 1]
    assert [p for _, p in choice.logprobs.top] == pytest.approx([expected[2], expected[3], expected[1]])
    only_chosen = choose(logits, SamplingParams(logprobs=0), 0).logprobs
    assert only_chosen is not None
    assert only_chosen.top == ()
    assert choose(logits, SamplingParams(), 0).logprobs is None


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", -0.1, r"temperature -0.1: a number from 0 to 100"),
        ("temperature", math.nan, "temperature nan"),
        ("temperature", "1", "temperature '1'"),
        ("temperature", True, "temperature True"),
        ("top_k", -1, "top_k -1: a whole number from 0"),
        ("top_k", 1.5, "top_k 1.5"),
        ("top_p", 0.0, "top_p 0.0: a number above 0 and at most 1"),
        ("top_p", 1.1, "top_p 1.1: a number from 0 to 1"),
        ("min_p", 2, "min_p 2"),
        ("seed", -1, "seed -1: a whole number from 0 to 18446744073709551615"),
        ("logprobs", 1000, "logprobs 1000: a whole number from 0 to 128"),
    ],
)
def test_parameters_outside_their_range_are_refused_with_the_numbers(field: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        SamplingParams(**{field: value})


def test_sampling_without_a_seed_is_refused_and_a_seed_given_is_kept() -> None:
    with pytest.raises(InvalidRequestError, match="needs a seed"):
        choose(row(1, 2), SamplingParams(temperature=1.0), 0)
    assert SamplingParams(temperature=1.0).with_seed(5).seed == 5
    assert SamplingParams(temperature=1.0, seed=3).with_seed(5).seed == 3
