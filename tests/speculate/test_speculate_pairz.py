"""Pair Z: early logits are measured, and refused as a drafter by what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aeonflow.errors import AeonflowError
from aeonflow.kv_options import KvOptions
from host.bench.pairz import MIN_ROWS, lead_over_lookup, lookup_tokens_per_pass, tap_gains, verdict
from host.launch import run_verb
from host.plan import effect_of
from stations.core.kv_layout import KvLayout
from stations.kernels import Span, make_backend
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles

PROMPT, ANSWER = [5, 9, 200, 31], [77, 8, 9, 300, 301]


async def test_the_agreement_of_each_layer_is_that_of_whole_rows_computed_one_by_one(model: ModelFolder) -> None:
    given = json.dumps([{"prompt": PROMPT, "answer": ANSWER}]).encode()
    found = await run_verb("early", str(model.path), given=given)
    card = model.card
    backend = make_backend("reference", model, all_roles(card.num_layers))
    layout = KvLayout(card, KvOptions())
    caches = [layout.new_cache(layer, 16) for layer in range(card.num_layers)]
    tops: list[list[int]] = []
    for at, token in enumerate([*PROMPT, *ANSWER[:-1]]):
        x, row = backend.embed(np.array([token], np.uint32), 0, 1), []
        for layer, cache in enumerate(caches):
            x = backend.block(layer, layer, x, [[Span(cache, at, 1)]])
            row.append(int(backend.head(x, 0, 1)[0].argmax()))
        tops.append(row)
    looked_at = tops[len(PROMPT) - 1 :]
    expected = [sum(row[layer] == row[-1] for row in looked_at) / len(ANSWER) for layer in range(card.num_layers)]
    assert found["rows"] == len(ANSWER)
    assert found["agreement"] == expected
    assert found["agreed"] == [[round(share * len(ANSWER)) for share in expected]]
    assert expected[-1] == 1.0
    assert min(expected) < 1.0


@pytest.mark.parametrize(
    ("text", "named"),
    [([], "0 texts"), ([{"prompt": [], "answer": [1]}], "0 and 1 tokens"), ([{"prompt": [1], "answer": [512]}], "511")],
)
async def test_texts_that_cannot_be_measured_are_named(text: object, named: str, model: ModelFolder) -> None:
    with pytest.raises(AeonflowError, match=named):
        await run_verb("early", str(model.path), given=json.dumps(text).encode())


def test_the_gain_of_a_tap_is_one_over_the_passes_a_token_costs() -> None:
    assert tap_gains([0.5, 0.5, 1.0]) == pytest.approx([1 / (0.5 + 0.5 / 3), 1 / (0.5 + 1 / 3)])


def test_lookup_is_counted_pass_by_pass() -> None:
    assert lookup_tokens_per_pass([([1, 2], [9, 8, 7, 6])], 8) == 1.0
    looping = [([1, 2, 3], [4, 1, 2, 3, 4, 1, 2, 3, 4])]
    assert lookup_tokens_per_pass(looping, 8) == 8 / 2  # 1 without a match, then all that is left
    assert lookup_tokens_per_pass(looping, 2) == 8 / 4


def test_a_lead_over_lookup_has_an_error_and_few_rows_tell_nothing() -> None:
    texts = [([1, 2], [9, 8, 7, 6]), ([3, 4], [5, 11, 12, 13])]  # nothing repeats: lookup gives a token a pass
    lead, error = lead_over_lookup([[2, 4], [2, 4]], texts)
    assert (lead, error) == (pytest.approx(1 / 0.75 - 1), 0.0)
    _, error = lead_over_lookup([[0, 4], [4, 4]], texts)
    assert error == pytest.approx(0.5)  # without one text the gain is 1, without the other 2
    assert verdict(0.3, 0.1, MIN_ROWS) is True
    assert verdict(-0.3, 0.1, MIN_ROWS) is False
    assert verdict(0.3, 0.2, MIN_ROWS) is verdict(0.3, 0.1, MIN_ROWS - 1) is None


def test_pairz_is_refused_for_what_was_measured() -> None:
    with pytest.raises(AeonflowError, match="too rarely to beat prompt lookup"):
        effect_of("speculate", "pairz")
    done = subprocess.run(
        [sys.executable, "-m", "host.cli", "run", "--speculate", "pairz", "Hello"],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 2
    assert "bench pairz" in done.stderr
