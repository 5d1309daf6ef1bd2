"""The probe: seeded passes against the formula written out, and what of its report the host uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from aeonflow.kv_options import KvOptions
from stations.core.kv_layout import KvLayout
from stations.kernels.base import Span
from stations.kernels.reference import ReferenceBackend
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles
from stations.probe.layers import probe
from stations.probe.scores import Scores, choices, log_softmax
from stations.probe.seeded import Seeded
from stations.verbs.seeded import Texts

IDS = [3, 17, 5, 200, 41, 9, 77]
LAYERS = 4


@pytest.fixture(scope="module")
def model(make_model: Callable[[str], ModelFolder]) -> ModelFolder:
    return make_model("layers=4")


@pytest.fixture(scope="module")
def backend(model: ModelFolder) -> ReferenceBackend:
    return ReferenceBackend(model, all_roles(LAYERS), row_by_row=True)


def written_out(backend: Any, model: ModelFolder, seeded: set[int], seed: str) -> Any:
    """The seeded model as its formula says it, from whole layers' primitives: the head's input [S, H]."""
    x = backend.embed(np.array(IDS, np.uint32), 0, 1)
    h_below = x_below = x
    layout = KvLayout(model.card, KvOptions())
    for layer in range(LAYERS):
        source = x if layer not in seeded else h_below if seed == "h" else x_below
        a = backend.attn_delta(layer, source, [Span(layout.new_cache(layer, len(IDS)), 0, len(IDS))])
        h = x + a
        f = backend.down_delta(layer, backend.gate_up(layer, backend.norm2(layer, h)))
        x_below, h_below, x = x, h, h + f
    return x


@pytest.mark.parametrize("seed", ["h", "x"])
@pytest.mark.parametrize("layers", [set(), {2}, {1, 3}, {1, 2, 3}])
def test_a_seeded_forward_is_its_formula(model: ModelFolder, backend: Any, layers: set[int], seed: str) -> None:
    text = Seeded(backend, model.card, IDS)
    assert text.forward(layers, seed).tobytes() == written_out(backend, model, layers, seed).tobytes()


def test_a_draft_of_no_seeded_layer_is_the_plain_pass(model: ModelFolder, backend: Any) -> None:
    text = Seeded(backend, model.card, IDS)
    rows = np.array([2, 4, 6])
    assert text.draft((), "h", rows).tobytes() == text.x[-1][rows].tobytes()


def test_a_draft_reads_plain_rows_before_its_own(model: ModelFolder, backend: Any) -> None:
    """One row drafted is the last row of a pass whose earlier rows are plain at every layer."""
    text, layers = Seeded(backend, model.card, IDS), {2, 3}
    layout = KvLayout(model.card, KvOptions())
    for row in (1, 5):
        x, below = text.x[2][row : row + 1], text.h[1][row : row + 1]
        for layer in range(2, LAYERS):
            cache = layout.new_cache(layer, len(IDS))
            backend.attn_delta(layer, text.x[layer][:row], [Span(cache, 0, row)])
            a = backend.attn_delta(layer, below if layer in layers else x, [Span(cache, row, 1)])
            below = x + a
            x = below + backend.down_delta(layer, backend.gate_up(layer, backend.norm2(layer, below)))
        assert text.draft(layers, "h", np.array([row])).tobytes() == x.tobytes()


def test_scores_of_the_plain_model_against_itself_are_perfect() -> None:
    logits = np.random.default_rng(3).standard_normal((5, 11)).astype(np.float32)
    scores = Scores()
    scores.add(logits, log_softmax(logits), np.arange(5))
    assert (scores.top1, scores.mean_kl) == (1.0, 0.0)
    wide = logits.astype(np.float64)
    likelihood = wide[np.arange(5), np.arange(5)] - np.log(np.exp(wide).sum(axis=1))
    assert scores.perplexity == pytest.approx(float(np.exp(-likelihood.mean())), rel=1e-6)


def test_the_report_ranks_every_layer_but_the_first_by_its_divergence(model: ModelFolder, backend: Any) -> None:
    answer = choices(backend, Seeded(backend, model.card, IDS).x[-1]).tolist()
    steps: list[tuple[str, int, int]] = []
    found = probe(backend, model.card, [IDS], [(IDS[:5], answer[4:])], "h", lambda *step: steps.append(step))
    assert [one["layer"] for one in found["layers"]] == [1, 2, 3]
    divergence = {one["layer"]: one["kl"] for one in found["layers"]}
    assert found["ranking"] == sorted(divergence, key=lambda layer: divergence[layer])
    assert [one["layers"] for one in found["sets"]] == [sorted(found["ranking"][:2]), [1, 2, 3]]
    assert all(one["max_abs"] > 1e-4 and 0 <= one["alpha"] <= 1 for one in found["layers"])
    assert found["num_tokens"] == len(IDS) - 1
    assert steps[-1] == ("seeded passes", len(steps), len(steps))


def test_the_texts_of_the_verb_are_read_as_the_host_writes_them() -> None:
    from host.pairx.probe import Material

    material = Material([[1, 2]], [{"prompt": [1], "answer": [2, 3]}])
    read = msgspec.json.decode(material.to_verb, type=Texts)
    assert (read.texts, read.answers[0].answer) == ([[1, 2]], [2, 3])
