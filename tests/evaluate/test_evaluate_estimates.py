"""Means over runs of tokens and what their standard errors allow for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from host.evaluate.estimate import Estimate, mean


def test_of_independent_tokens_the_error_is_the_usual_one() -> None:
    values = np.random.default_rng(1).standard_normal(500)
    found = mean([values], block=1)
    assert found is not None
    assert found.value == pytest.approx(values.mean())
    assert found.se == pytest.approx(values.std(ddof=1) / math.sqrt(500))


def test_tokens_that_repeat_each_other_count_once_in_the_error() -> None:
    values = np.random.default_rng(2).standard_normal(100)
    once, often = mean([values], block=1), mean([np.repeat(values, 8)], block=8)
    assert once is not None
    assert often is not None
    assert often.value == pytest.approx(once.value)
    assert often.se == pytest.approx(once.se)


def test_blocks_end_with_their_run_and_shorter_ones_weigh_less() -> None:
    found = mean([np.array([1.0, 2.0, 6.0]), np.array([3.0])], block=2)
    # blocks: sums 3, 6, 3 over 2, 1, 1 tokens; mean 3; residuals -3, 3, 0
    assert found == Estimate(3.0, math.sqrt(3 / 2 * 18) / 4)


def test_one_block_has_no_error_and_no_tokens_no_mean() -> None:
    assert mean([np.array([1.0, 3.0])], block=4) == Estimate(2.0, None)
    assert mean([np.empty(0)], block=4) is None


def test_a_ratio_of_perplexities_is_made_of_a_mean_difference() -> None:
    ratio = Estimate(0.01, 0.002).exp()
    percent = ratio.minus(1).times(100)
    assert percent.value == pytest.approx(100 * (math.exp(0.01) - 1))
    assert percent.se == pytest.approx(100 * math.exp(0.01) * 0.002)
    assert Estimate(0.0, None).exp().minus(1).times(100) == Estimate(0.0, None)
