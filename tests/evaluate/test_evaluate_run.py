"""Whole evaluations on a generated model: in step, at any cut, and against kernels called row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aeonflow.errors import AeonflowError
from aeonflow.kv_options import KvOptions, parse_kv_options
from host import Engine
from host.evaluate import Evaluation, evaluate, texts_to_windows
from host.evaluate.windows import Window
from stations.core.kv_layout import KvLayout
from stations.kernels import Span, make_backend
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles

CONTEXT = 192
WINDOWS = texts_to_windows([[(i * i + 7 * i + i // 3) % 512 for i in range(360)]], CONTEXT, 4096)
Q8, Q4 = parse_kv_options({"kv": "q8"}), parse_kv_options({"kv": "q4", "exact_recent": 8})


def figures(found: Evaluation) -> list[Any]:
    """All that does not depend on the clock."""
    return [
        found.option.ppl, found.option.recall_ppl, found.option.kv_bytes, found.exact.ppl, found.exact.recall_ppl,
        found.exact.kv_bytes, found.kl, found.top1, found.delta_ppl_percent, found.recall,
    ]  # fmt: skip


def row_by_row(model: ModelFolder, window: Window, options: KvOptions) -> np.ndarray:
    """Log probabilities f64 [rows, vocabulary] of every row, one row a call, no station."""
    card = model.card
    backend = make_backend("fast", model, all_roles(card.num_layers))
    layout = KvLayout(card, options)
    caches = [layout.new_cache(layer, window.num_rows) for layer in range(card.num_layers)]
    rows = []
    for at in range(window.num_rows):
        x = backend.embed(np.array(window.ids[at : at + 1], np.uint32), 0, 1)
        x = backend.block(0, card.num_layers - 1, x, [[Span(cache, at, 1)] for cache in caches])
        rows.append(backend.head(x, 0, 1)[0].astype(np.float64))
    logits = np.array(rows)
    logits -= logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


async def test_figures_are_those_of_kernels_called_row_by_row(tiny_model: Path) -> None:
    async with Engine.launch(model=str(tiny_model), threads=1) as engine:
        (found,) = await evaluate(engine, WINDOWS, [Q4])
    model = ModelFolder.open(tiny_model)
    text_nll, text_kl, recall_nll, exact_nll, exact_recall = [], [], [], [], []
    for window in WINDOWS:
        exact, coded = row_by_row(model, window, KvOptions()), row_by_row(model, window, Q4)
        targets = np.array(window.ids[1:])[:, None]
        nll, base = -np.take_along_axis(coded, targets, 1)[:, 0], -np.take_along_axis(exact, targets, 1)[:, 0]
        kl = (np.exp(exact) * (exact - coded)).sum(axis=1)
        text_nll.extend(nll[window.text_rows])
        exact_nll.extend(base[window.text_rows])
        text_kl.extend(kl[window.text_rows])
        for rows in window.recall_rows:
            recall_nll.extend(nll[rows])
            exact_recall.extend(base[rows])
    assert found.num_windows == 2
    assert found.num_text_tokens == len(text_nll)
    assert found.num_recall_tokens == len(recall_nll)
    assert found.kl is not None
    assert found.kl.value == pytest.approx(np.mean(text_kl), rel=1e-3, abs=1e-8)
    assert found.kl.value > 1e-7
    assert found.option.ppl is not None
    assert found.option.ppl.value == pytest.approx(np.exp(np.mean(text_nll)), rel=1e-6)
    assert found.delta_ppl_percent is not None
    ratio = np.exp(np.mean(text_nll) - np.mean(exact_nll))
    assert found.delta_ppl_percent.value == pytest.approx(100 * (ratio - 1), abs=1e-4)
    assert found.recall is not None
    assert found.recall.value == pytest.approx(np.exp(np.mean(recall_nll) - np.mean(exact_recall)), rel=1e-6)


async def test_the_exact_cache_beside_itself_differs_in_nothing(tiny_model: Path) -> None:
    async with Engine.launch(model=str(tiny_model), threads=1, kv="q8") as engine:
        (found,) = await evaluate(engine, WINDOWS, [KvOptions()])
    assert found.kl is not None
    assert found.top1 is not None
    assert found.recall is not None
    assert (found.kl.value, found.top1.value, found.recall.value, found.bytes_ratio) == (0.0, 1.0, 1.0, 1.0)
    assert found.option.ppl == found.exact.ppl


async def test_other_kernels_stand_beside_the_exact_ones_on_an_engine_of_their_own(tiny_model: Path) -> None:
    async with (
        Engine.launch(model=str(tiny_model), threads=1, kernels="reference") as engine,
        Engine.launch(model=str(tiny_model), threads=1) as exact,
    ):
        (found,) = await evaluate(engine, WINDOWS[:1], [KvOptions()], baseline=exact)
        (same,) = await evaluate(exact, WINDOWS[:1], [KvOptions()], baseline=exact)
    assert 0 < found.logits_rms < 1e-3
    assert (same.logits_rms, same.exact.ppl) == (0.0, found.exact.ppl)


async def test_options_side_by_side_give_what_each_gives_alone_and_plans_change_nothing(tiny_model: Path) -> None:
    async with Engine.launch(model=str(tiny_model), threads=1) as engine:
        together = await evaluate(engine, WINDOWS, [Q8, Q4])
        alone = [*(await evaluate(engine, WINDOWS, [Q8])), *(await evaluate(engine, WINDOWS, [Q4]))]
        assert not engine.network.sequences
    async with Engine.launch(model=str(tiny_model), plan="layers:2") as engine:
        cut = await evaluate(engine, WINDOWS, [Q8, Q4])
    assert [figures(found) for found in together] == [figures(found) for found in alone]
    assert [figures(found) for found in cut] == [figures(found) for found in together]


async def test_layers_that_change_form_at_every_row_are_fed_all_the_same(tiny_model: Path) -> None:
    sealed = parse_kv_options({"o1": {"m": 8, "w": 16, "sink": 4}})
    assert sealed.o1 is not None
    assert sealed.o1.boundary < WINDOWS[0].first_scored + 16
    async with Engine.launch(model=str(tiny_model), threads=1) as engine:
        (found,) = await evaluate(engine, WINDOWS, [sealed])
    assert found.kl is not None
    assert found.kl.value > 0
    assert found.bytes_ratio < 1


async def test_rows_that_leave_cost_recall_and_save_bytes(tiny_model: Path) -> None:
    windows = texts_to_windows([[(i * i + 7 * i + i // 3) % 512 for i in range(500)]], 400, 4096)
    ways = [parse_kv_options({"max_rows": 128, "evict": evict}) for evict in ("born", "recent")]
    async with Engine.launch(model=str(tiny_model), threads=1) as engine:
        exact, *found = await evaluate(engine, windows, [KvOptions(), *ways, parse_kv_options({"window": 32})])
    assert exact.kl is not None
    assert exact.kl.value == 0
    for one in found:
        assert one.kl is not None
        assert one.kl.value > 0
        assert one.bytes_ratio < 0.5


async def test_kv_bytes_are_those_of_caches_with_as_many_rows(tiny_model: Path) -> None:
    card = ModelFolder.open(tiny_model).card
    async with Engine.launch(model=str(tiny_model), threads=1) as engine:
        q8, q4 = await evaluate(engine, WINDOWS, [Q8, Q4])
    row = np.ones((1, card.num_kv_heads, card.head_dim), np.float32)
    for found, options in ((q8.exact, KvOptions()), (q8.option, Q8), (q4.option, Q4)):
        cache = KvLayout(card, options).new_cache(0, CONTEXT)
        for _ in range(WINDOWS[-1].num_rows):
            cache.append(row, row)
        assert found.kv_bytes == card.num_layers * cache.memory_bytes()
    assert q4.bytes_ratio < q8.bytes_ratio < 1.0


async def test_rates_and_progress_cover_every_row_fed(tiny_model: Path) -> None:
    seen: list[tuple[int, int]] = []
    async with Engine.launch(model=str(tiny_model), threads=1) as engine:
        (found,) = await evaluate(engine, WINDOWS, [Q8], progress=lambda done, total: seen.append((done, total)))
    total = 2 * sum(window.num_rows for window in WINDOWS)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert min(found.option.decode_tok_s, found.option.prefill_tok_s, found.exact.decode_tok_s) > 0


async def test_a_refused_option_leaves_no_session_behind(tiny_model: Path) -> None:
    unknown = KvOptions(kv="q2")
    async with Engine.launch(model=str(tiny_model), threads=1) as engine:
        with pytest.raises(AeonflowError, match="q2"):
            await evaluate(engine, WINDOWS, [unknown])
        assert not engine.network.sequences
        status = await engine.status()
    assert status["stations"][0]["stats"]["sessions"] == 0
