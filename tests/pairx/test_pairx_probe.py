"""The probe: seeded passes against the formula written out, and what of its report the host uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from aeonflow.kv_options import KvOptions
from host import Engine
from host.pairx.probe import Answered, Material
from host.pairx.probe_report import to_report
from host.status import PROBE_ROWS
from stations.core.kv_layout import KvLayout
from stations.kernels.base import Span
from stations.kernels.reference import ReferenceBackend
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles
from stations.probe.blocks import BLOCK_ROWS, block_maxima, block_rows, block_sums
from stations.probe.layers import probe
from stations.probe.offs import offs
from stations.probe.scores import choices, log_softmax, score_logits
from stations.probe.seeded import Seeded
from stations.verbs.seeded import Texts
from tests.engine.local_stations import TOKEN, local_fleet

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
    found = score_logits(logits, log_softmax(logits), np.arange(5))
    assert (found.same_top.tolist(), found.kl.tolist()) == ([1.0] * 5, [0.0] * 5)
    wide = logits.astype(np.float64)
    likelihood = wide[np.arange(5), np.arange(5)] - np.log(np.exp(wide).sum(axis=1))
    assert found.nll == pytest.approx(-likelihood, rel=1e-6)


@pytest.mark.parametrize("seed", ["h", "x"])
def test_how_far_attention_moves_is_its_formula(seed: str, model: ModelFolder, backend: Any) -> None:
    text, layout = Seeded(backend, model.card, IDS), KvLayout(model.card, KvOptions())
    found = offs(text, 2, seed)
    given = text.h[1] if seed == "h" else text.x[1]
    moved = [
        backend.attn_delta(2, rows, [Span(layout.new_cache(2, len(IDS)), 0, len(IDS))]).astype(np.float64)
        for rows in (given, text.x[2])
    ]
    assert found.attention == pytest.approx(
        [np.sqrt(((a - b) ** 2).sum() / (b**2).sum()) for a, b in zip(*moved, strict=True)]
    )
    assert found.max_abs.tolist() == np.abs(given - text.x[2]).max(axis=1).tolist()
    assert found.relative == pytest.approx(found.max_abs / np.abs(text.x[2]).max(axis=1))


def test_blocks_end_with_their_text_and_lose_no_row() -> None:
    runs = [np.arange(45.0), np.arange(7.0)]
    assert block_rows([45, 7]) == [BLOCK_ROWS, BLOCK_ROWS, 5, 7]
    assert block_sums(runs) == [190.0, 590.0, 210.0, 21.0]
    assert block_maxima(runs) == [19.0, 39.0, 44.0, 6.0]


def test_the_report_ranks_every_layer_but_the_first_by_its_divergence(model: ModelFolder, backend: Any) -> None:
    answer = choices(backend, Seeded(backend, model.card, IDS).x[-1]).tolist()
    steps: list[tuple[str, int, int]] = []
    told = probe(backend, model.card, [IDS], [(IDS[:5], answer[4:])], "h", lambda *step: steps.append(step))
    found = to_report({**told, "answers_of": ["chat"]})
    assert [one.layer for one in found.layers] == [1, 2, 3]
    divergence = {one.layer: one.kl for one in found.layers}
    assert list(found.ranking) == sorted(divergence, key=lambda layer: divergence[layer])
    assert {one.layers for one in found.sets} == {tuple(sorted(found.ranking[:2])), (1, 2, 3), (2, 3)}
    assert all(one.max_abs > 1e-4 and 0 <= one.alpha <= 1 for one in found.layers)
    assert {one.alpha_of["chat"].value == one.alpha for one in (*found.layers, *found.sets)} == {True}
    assert found.num_tokens == len(IDS) - 1
    assert steps[-1] == ("seeded passes", len(steps), len(steps))
    logits = backend.head(Seeded(backend, model.card, IDS).forward({2}, "h")[:-1], 0, 1).astype(np.float64)
    nll = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(IDS) - 1), IDS[1:]]
    assert found.layers[1].perplexity_ratio * found.perplexity == pytest.approx(np.exp(nll.mean()), rel=1e-5)


def test_only_sets_that_are_given_are_measured_when_there_are_any(model: ModelFolder, backend: Any) -> None:
    answers = [(IDS[:5], choices(backend, Seeded(backend, model.card, IDS).x[-1]).tolist()[4:])]
    whole = probe(backend, model.card, [IDS], answers, "x", lambda *step: None)
    found = probe(backend, model.card, [IDS], answers, "x", lambda *step: None, given=[(3, 1, 2)])
    assert (found["layers"], found["ranking"]) == ([], [])
    assert found["sets"] == [one for one in whole["sets"] if one["layers"] == [1, 2, 3]]


def sums(nll: list[float], right: list[int]) -> dict[str, Any]:
    return {"nll": nll, "kl": nll, "same_top": [20.0, 20.0, 5.0], "right": right}


def test_errors_come_from_blocks_of_paired_rows_and_from_whole_answers() -> None:
    """Seeded rows that cost 0.1 nats more everywhere have no error, whatever the text's own perplexity does."""
    layer = {"layer": 1, "max_abs": [1.0, 3.0, 9.0], "relative": [2.0, 4.0, 1.0], "attention": [20.0, 20.0, 5.0]}
    found = to_report({
        "model": "m", "fingerprint": "f" * 8, "seed": "h", "num_layers": 2, "num_texts": 1, "block_rows": [20, 20, 5],
        "off_block_rows": [20, 20, 5], "drafted": [10, 10, 4], "answers_of": ["chat", "chat", "edit"], "sets": [],
        "plain": sums([40.0, 80.0, 10.0], [10, 10, 4]), "ranking": [1],
        "layers": [{**layer, **sums([42.0, 82.0, 10.5], [8, 10, 3])}],
    })  # fmt: skip
    (one,) = found.layers
    assert (one.perplexity_ratio, one.perplexity_ratio_se) == (pytest.approx(np.exp(0.1)), pytest.approx(0.0, abs=1e-9))
    assert found.perplexity == pytest.approx(np.exp(130 / 45))
    assert found.perplexity_se is not None
    assert found.perplexity_se > 1.0
    chat, edit = one.alpha_of["chat"], one.alpha_of["edit"]
    assert (chat.value, chat.se, chat.drafted) == (0.9, pytest.approx(0.1), 20)
    assert (edit.value, edit.se, edit.drafted) == (0.75, None, 4)
    assert (one.max_abs, one.max_abs_block, one.max_abs_block_low, one.max_abs_block_high) == (9.0, 2.0, 1.0, 3.0)
    assert (found.best_max_abs, found.best_max_abs_low, found.best_max_abs_high) == (2.0, 1.0, 3.0), "of whole blocks"
    assert (one.attention_moves, one.attention_moves_se) == (1.0, 0.0)


async def test_the_figures_of_a_running_shadow_are_those_of_the_probe(model: ModelFolder, backend: Any) -> None:
    """The same rows one by one: the text, and the rows of token 0 with which an engine asks its chain how it is."""
    async with (
        local_fleet("trisplit", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", pair_x="shadow") as engine,
    ):
        before = (await engine.status())["pair_x"]["shadow"]
        answer = await engine.generate(IDS, max_tokens=4, ignore_eos=True, prefill_chunk=1).collect()
        told = (await engine.status())["pair_x"]["shadow"]
    text = Seeded(backend, model.card, [*IDS, *answer.token_ids[:-1]])
    asked = [Seeded(backend, model.card, [0] * rows) for rows in (1, PROBE_ROWS)]
    for layer in range(1, LAYERS):
        found = offs(text, layer, "h")
        figures, earlier = told[str(layer)], before[str(layer)]
        worst = max(float(found.max_abs.max()), *(float(offs(one, layer, "h").max_abs.max()) for one in asked))
        assert figures["max_abs"] == worst
        again = 1  # the first status asks the chain after it has asked the stations
        assert figures["count"] == earlier["count"] + len(found.relative) + again
        rest = offs(asked[0], layer, "h").relative[0]
        total = figures["count"] * figures["mean_relative"] - earlier["count"] * earlier["mean_relative"]
        assert total == pytest.approx(found.relative.sum() + rest, rel=1e-9)


def test_the_texts_of_the_verb_are_read_as_the_host_writes_them() -> None:
    material = Material([[1, 2]], [Answered([1], [2, 3], "edit")])
    read = msgspec.json.decode(material.to_verb, type=Texts)
    assert (read.texts, read.answers[0].answer, read.answers[0].of) == ([[1, 2]], [2, 3], "edit")
