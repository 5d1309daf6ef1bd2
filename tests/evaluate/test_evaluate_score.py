"""Rows of logits compared, against the obvious formulas in f64."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow.errors import PoisonedError
from host.evaluate.score import Baseline, softmax_of

RNG = np.random.default_rng(3)
LOGITS = (4 * RNG.standard_normal((5, 700))).astype(np.float32)
OTHER = (LOGITS + 0.1 * RNG.standard_normal(LOGITS.shape)).astype(np.float32)
TARGETS = RNG.integers(0, 700, 5)


def plain_log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def test_nll_and_kl_are_those_of_the_formulas() -> None:
    p, q = plain_log_softmax(LOGITS), plain_log_softmax(OTHER)
    baseline = Baseline(LOGITS, TARGETS)
    found = baseline.compare(OTHER)
    rows = np.arange(5)
    np.testing.assert_allclose(baseline.nll, -p[rows, TARGETS], atol=1e-6)
    np.testing.assert_allclose(found.nll, -q[rows, TARGETS], atol=1e-6)
    np.testing.assert_allclose(found.kl, (np.exp(p) * (p - q)).sum(axis=1), atol=1e-7)


def test_equal_rows_have_no_divergence_at_all() -> None:
    found = Baseline(LOGITS, TARGETS).compare(LOGITS.copy())
    assert found.kl.tolist() == [0.0] * 5
    assert found.agree.tolist() == [1.0] * 5


def test_a_constant_added_to_all_logits_changes_nothing_that_matters() -> None:
    baseline = Baseline(LOGITS, TARGETS)
    found = baseline.compare(LOGITS + np.float32(64))
    assert np.allclose(found.square, 64.0**2)
    np.testing.assert_allclose(found.nll, baseline.nll, atol=2e-5)
    np.testing.assert_allclose(found.kl, 0, atol=2e-5)


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([[3e4, 2.9e4, -3e4]], np.float32)
    found = Baseline(logits, np.array([1])).compare(logits)
    assert found.nll.tolist() == [1000.0]


def test_agreement_is_about_the_likeliest_token_and_ties_go_to_the_lowest_id() -> None:
    a = np.array([[0, 2, 2], [5, 1, 1], [0, 0, 3]], np.float32)
    b = np.array([[0, 2, 1], [1, 5, 1], [3, 0, 3]], np.float32)
    assert Baseline(a, np.zeros(3, np.int64)).compare(b).agree.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused_by_number(bad: float) -> None:
    logits = LOGITS.copy()
    logits[2, 9] = bad
    with pytest.raises(PoisonedError, match="row 2 of 5"), np.errstate(invalid="ignore"):
        softmax_of(logits)


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4, 700\) beside \(5, 700\)"):
        Baseline(LOGITS, TARGETS).compare(LOGITS[:4])
