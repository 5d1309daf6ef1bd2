"""Seeded sampling: the same tokens with and without speculation, and so the same distribution, held against softmax."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from host.sampling import SamplingParams, choose, choose_among

from .means import all_at_once, drafting, looking_up, plain
from .toy import ToyChain, run_toy, toy_logits

VOCAB = 3
PROMPT = (0, 1, 2, 0, 1)


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize(("means", "seeds"), [("lookup", 200), ("drafts", 200), ("auto", 1000)])
def test_all_answers_of_a_tiny_vocabulary_come_as_often_as_the_model_says(means: str, seeds: int) -> None:
    """Three tokens of a vocabulary of three: 27 answers, each with the product of its softmax probabilities."""
    sources = {"lookup": looking_up, "drafts": lambda seed: drafting(), "auto": all_at_once}
    found, expected = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for seed in range(seeds):
        sampling = SamplingParams(temperature=1.7, seed=seed)
        options = {"prompt": PROMPT, "max_tokens": 3, "sampling": sampling}
        expected[run_toy(ToyChain(random.Random(0), vocab=VOCAB), plain(), **options)[0].tokens] += 1  # type: ignore[arg-type]
        chain = ToyChain(random.Random(seed), vocab=VOCAB, hit_rate=0.6)
        found[run_toy(chain, sources[means](seed), **options)[0].tokens] += 1  # type: ignore[arg-type]
    assert found == expected, "not one answer of one seed may differ"
    chi_square = 0.0
    for answer in itertools.product(range(VOCAB), repeat=3):
        probability, tokens = 1.0, list(PROMPT)
        for token in answer:
            probability *= softmax(toy_logits(tokens, VOCAB), 1.7)[token]
            tokens.append(token)
        chi_square += (found[answer] - seeds * probability) ** 2 / (seeds * probability)
    assert chi_square < 54.05, "26 degrees of freedom: beyond the 99.9 % quantile"


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, seed=3),
        SamplingParams(temperature=1.2, top_k=20, seed=4),
        SamplingParams(temperature=0.9, top_p=0.8, seed=5),
        SamplingParams(temperature=0.9, min_p=0.1, seed=6),
        SamplingParams(temperature=1.0, top_k=30, top_p=0.9, min_p=0.02, seed=7),
    ],
)
def test_a_draft_s_token_is_chosen_as_plain_sampling_chooses(params: SamplingParams) -> None:
    rng = np.random.default_rng(1)
    num_same = num_there = 0
    for position in range(300):
        row = (4.0 * rng.normal(size=1000)).astype(np.float32)
        ids = np.lexsort((np.arange(1000), -row))[:64].astype(np.uint32)
        expected = choose(row, params, position).token
        num_there += expected in ids
        num_same += choose_among(ids, row[ids], params, position) == expected
    assert num_there > 290
    # The weight of all other tokens is not known to a draft: top_p may then cut elsewhere, at no cost but a miss.
    assert num_same >= 0.98 * num_there if params.top_p < 1 else num_same == num_there


def test_of_equal_candidates_the_lowest_id_is_the_guess() -> None:
    ids, logits = np.array([9, 4, 6], np.uint32), np.array([1.0, 1.0, 0.5], np.float32)
    assert choose_among(ids, logits, SamplingParams(), 3) == 4
