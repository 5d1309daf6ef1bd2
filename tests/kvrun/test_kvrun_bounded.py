"""Rows that leave: eviction and windows. The same tokens on every cut, bounded bytes, no end at the context's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aeonflow.errors import RollbackError
from aeonflow.kv_options import Barrier, KvOptions, parse_kv_options
from aeonflow.tensors import Want
from host.errors import ContextLengthError, InvalidRequestError
from stations.core.kv_layout import KvLayout
from stations.kernels import Span, make_backend
from stations.kv import LayerKvCache
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles
from stations.models.synthetic import build_synthetic

from .fleets import Outcome, Plain, connected, engine_on, generated, stations
from .speculating_host import Asked, speculated

LONG = [(91 * i + 7) % 512 for i in range(230)]
BOUNDED: dict[str, dict[str, Any]] = {
    "born": {"kv_max": 128},
    "born with q8": {"kv": "q8", "kv_max": 130, "kv_sink": 2},
    "recent": {"kv": "f16", "kv_max": 150, "kv_evict": "recent"},
    "window": {"window": 40},
    "window with q4": {"kv": "q4", "kv_exact_recent": 8, "window": 40},
}
QUICK = ("born", "recent", "window with q4")
NAMES = {"kv_max": "max_rows", "kv_evict": "evict", "kv_sink": "sink", "kv_exact_recent": "exact_recent"}


def options_of(name: str) -> KvOptions:
    return parse_kv_options({NAMES.get(option, option): value for option, value in BOUNDED[name].items()})


def truth_of(name: str, plain: Plain) -> Outcome:
    return plain.generated(options_of(name), LONG)


@pytest.mark.parametrize("name", BOUNDED)
async def test_rows_that_leave_do_so_at_the_same_positions_on_every_cut(
    name: str, model: ModelFolder, plain: Plain
) -> None:
    expected = truth_of(name, plain)
    assert expected != plain.generated(parse_kv_options({"kv": BOUNDED[name].get("kv", "f32")}), LONG)
    async with engine_on("layers:2", model, **BOUNDED[name]) as engine:
        for chunk in (7, 100_000):
            assert await generated(engine, LONG, chunk=chunk) == expected, chunk


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize(("plan", "route", "threads"), [("trisplit", "chain", 1), ("layers:1", "relay", 2)])
async def test_plans_routes_and_threads_change_no_bit(
    plan: str, route: str, threads: int, name: str, model: ModelFolder, plain: Plain
) -> None:
    async with engine_on(plan, model, route=route, threads=threads, **BOUNDED[name]) as engine:
        assert await generated(engine, LONG, chunk=64) == truth_of(name, plain)


@pytest.mark.parametrize("name", QUICK)
async def test_wrong_rows_that_an_epoch_cuts_change_nothing_that_leaves(
    name: str, model: ModelFolder, plain: Plain
) -> None:
    expected = plain.generated(options_of(name), LONG, 90)
    async with engine_on("layers:2", model, **BOUNDED[name]) as engine:
        for seed, chunk in ((3, 7), (4, 100_000)):
            assert await speculated(engine, LONG, expected.tokens, chunk=chunk, seed=seed) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("route", ["chain", "relay"])
@pytest.mark.parametrize("plan", ["layers:1", "layers:3", "trisplit", "trisplit:per-layer"])
async def test_all_plans_routes_chunks_and_wrong_rows(
    plan: str, route: str, name: str, model: ModelFolder, plain: Plain
) -> None:
    for length in (100, 230):
        expected = plain.generated(options_of(name), LONG[:length], 90)
        async with engine_on(plan, model, route=route, **BOUNDED[name]) as engine:
            for seed, chunk in enumerate((1, 7, 64, 100_000)):
                assert await generated(engine, LONG[:length], 90, chunk) == expected, chunk
                found = await speculated(engine, LONG[:length], expected.tokens, chunk=chunk, seed=seed)
                assert found == expected, chunk


@pytest.mark.parametrize("name", QUICK)
async def test_edited_history_is_the_same_as_a_fresh_conversation(name: str, model: ModelFolder, plain: Plain) -> None:
    edited = [*LONG[:90], *LONG[120:]]
    async with engine_on("layers:2", model, **BOUNDED[name]) as engine, engine.session() as session:
        await session.generate(LONG, max_tokens=40, ignore_eos=True).collect()
        again = await session.generate(edited, max_tokens=40, ignore_eos=True, logits_hash=True).collect()
    assert again.usage.cached_tokens == 0
    assert Outcome(again.token_ids, again.logits_hash or "") == plain.generated(options_of(name), edited)


async def test_history_edited_behind_the_last_barrier_costs_born_no_more_than_the_rows_since_it(
    model: ModelFolder, plain: Plain
) -> None:
    edited = [*LONG[:80], *LONG[90:110]]
    async with engine_on("layers:2", model, **BOUNDED["born"]) as engine, engine.session() as session:
        await session.generate(LONG[:100], max_tokens=20, ignore_eos=True).collect()
        again = await session.generate(edited, max_tokens=40, ignore_eos=True, logits_hash=True).collect()
    assert again.usage.cached_tokens == 64
    assert Outcome(again.token_ids, again.logits_hash or "") == plain.generated(options_of("born"), edited)


async def test_masses_that_have_joined_are_given_up_back_to_the_last_barrier(model: ModelFolder) -> None:
    async with engine_on("layers:2", model, kv_max=128) as engine:
        sequence = await engine.network.open(300)
        host = Asked(sequence)
        await host.prefill(LONG[:100], 100)
        sequence.restart(90)
        assert not sequence.is_cut_too_deep
        for token in (1, 2):
            await host.send([token], Want.LAST)
        sequence.restart(80)
        assert sequence.is_cut_too_deep
        with pytest.raises(RollbackError, match="a cut to position 80: attention masses since 64 have joined"):
            await host.send([1], Want.LAST)
        assert await engine.network.resume(sequence, 80) == 64


async def test_mass_below_a_barrier_cannot_be_taken_back_so_the_station_starts_from_tokens(model: ModelFolder) -> None:
    async with engine_on("layers:2", model, kv_max=128) as engine:
        sequence = await engine.network.open(300)
        host = Asked(sequence)
        await host.prefill(LONG[:100], 100)
        sequence.restart(50)
        assert sequence.is_cut_too_deep
        with pytest.raises(RollbackError, match="a cut to position 50: caches changed form at 64"):
            await host.send([1], Want.LAST)
        assert await engine.network.resume(sequence, 50) == 0


def test_sessions_keep_what_was_read_lately_or_all_along_and_of_the_rest_the_newest(model: ModelFolder) -> None:
    layout = KvLayout(model.card, options_of("born"))
    cache = layout.new_cache(0, 300)
    for position in range(128):
        if position % 64 == 0:
            layout.change_form(cache, position)
        rows = np.zeros((1, model.card.num_kv_heads * model.card.head_dim), np.float32)
        cache.append(rows, rows)
        reads = np.zeros(position + 1, np.float32)
        reads[20:22] = 0.05  # two all along
        reads[30:31] = 0.5 * (position == 127)  # one lately
        cache.hold_imp(position, reads)
    layout.change_form(cache, 128)
    assert cache.positions.tolist() == [0, 1, 2, 3, 20, 21, 30, *range(39, 128)]
    assert cache.latest_mass[4] == pytest.approx(64 * 0.05, rel=1e-5)


def test_barriers_are_where_rows_leave_and_where_mass_is_settled() -> None:
    assert options_of("born").layout_barriers() == (Barrier(128, 32), Barrier(64, 64))
    assert options_of("recent").layout_barriers() == (Barrier(150, 37),)
    assert options_of("window").layout_barriers() == (Barrier(81, 41),)


@pytest.mark.parametrize("name", ["born", "recent", "window"])
async def test_bytes_are_bounded_and_generation_goes_on_past_the_context_only_with_eviction(
    name: str, model: ModelFolder, tmp_path: Any
) -> None:
    small = build_synthetic(SMALL, tmp_path / "small")
    limit = 256
    async with (
        stations("layers:1", small, kernels="reference") as running,
        connected(running, **BOUNDED[name]) as engine,
    ):
        ((_, core),) = running.values()
        at: list[int] = []
        generation = engine.generate([1, 2, 3], max_tokens=400, ignore_eos=True)
        async for _ in generation:
            at.extend(max(c.seq_len for c in s.caches.values()) for s in core.sessions)
        result = generation.result
        if name == "window":
            with pytest.raises(ContextLengthError):
                engine.generate([1] * (limit + 1))
    assert result.finish_reason == "length"
    assert len(result.token_ids) == (limit - 3 + 1 if name == "window" else 400)
    options = options_of(name)
    assert max(at) == (options.max_rows or 2 * options.window + 1)


SMALL = "synthetic:layers=2,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=512,context=256,seed=3"


async def test_the_budget_counts_the_rows_that_stay(model: ModelFolder) -> None:
    async with stations("layers:1", model) as running:
        ((_, core),) = running.values()
        reserved = {}
        for name, options in {"f32": {}, **BOUNDED}.items():
            async with connected(running, **options) as engine:
                sequence = await engine.network.open(3000)
                await Asked(sequence).prefill(LONG, 100)
                reserved[name] = core.sessions.reserved_bytes
                session = core.sessions.get(sequence.session)
                assert session is not None
                assert session.cached_bytes() <= reserved[name]
    assert all(reserved[name] < reserved["f32"] / 5 for name in BOUNDED)


@pytest.mark.parametrize("options", [{"window": 21}, {"max_rows": 128}, {"kv": "q8", "max_rows": 128}])
def test_fast_and_reference_kernels_read_windows_and_keep_mass_alike(
    options: dict[str, Any], model: ModelFolder
) -> None:
    layout = KvLayout(model.card, parse_kv_options(options))
    x = np.random.default_rng(5).standard_normal((60, model.card.hidden_size), np.float32)
    outputs, caches = [], []
    for name in ("fast", "reference"):
        backend = make_backend(name, model, all_roles(model.card.num_layers))
        cache: LayerKvCache = layout.new_cache(1, 64)
        h, _ = backend.attn(1, x[:50], [Span(cache, 0, 50)])
        outputs.append(np.concatenate([h, backend.attn(1, x[50:], [Span(cache, 50, 10)])[0]]))
        cache.settle(60)
        caches.append(cache)
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=1e-4 * np.abs(outputs[0]).max())
    masses = [cache.importance for cache in caches]
    np.testing.assert_allclose(masses[0], masses[1], rtol=1e-3, atol=1e-4)
    expected = 60 * model.card.num_heads if "max_rows" in options else 0  # every query's probabilities add up to 1
    assert masses[0].sum() == pytest.approx(expected, rel=1e-4)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"kv": "q4", "kv_max": 200}, "kv_max=200 and kv=q4 contradict"),
    ({"kv": "q8", "kv_exact_recent": 8, "kv_max": 200}, "kv_max=200 and kv=q8 kv_exact_recent=8 contradict"),
    ({"kv_max": 200, "window": 40}, "window=40 and kv_max=200 contradict"),
    ({"kv_evict": "born"}, "kv_evict=born without kv_max"),
    ({"kv_sink": 3}, "kv_sink=3 without kv_max"),
    ({"kv_max": 100}, "kv_max=100: at least 128"),
    ({"kv_max": 128, "kv_sink": 33}, "kv_sink=33: 0 to 32"),
    ({"kv_max": 128, "kv_evict": "oldest"}, "kv_evict='oldest': supported are recent, born"),
    ({"window": 3}, "window=3: at least 16"),
    ({"window": 0}, "window 0: leave it out"),
    ({"kv": "f16", "kv_exact_recent": 4}, "kv=f16 and kv_exact_recent=4 contradict"),
    ({"kv": "q8", "kv_exact_recent": -1}, "kv_exact_recent=-1: 0 to 4096"),
    ({"kv": "q2"}, "kv='q2': supported are f32"),
]


@pytest.mark.parametrize(("options", "reason"), CONTRADICTIONS, ids=[reason for _, reason in CONTRADICTIONS])
async def test_what_does_not_go_together_is_refused_at_start_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        async with connected({"s": ("ws://127.0.0.1:9", None)}, **options):  # type: ignore[dict-item]
            raise AssertionError("an engine was made")
