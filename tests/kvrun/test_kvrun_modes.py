"""However rows are kept, the tokens and logits are the same on every plan, route, chunk and number of threads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aeonflow.kv_options import CODED_MODES, DEFAULT_EXACT_RECENT, parse_kv_options
from stations.models.folder import ModelFolder

from .fleets import PROMPT, Plain, engine_on, generated

MODES: dict[str, dict[str, Any]] = {
    "f16": {"kv": "f16"},
    "q8": {"kv": "q8"},
    "q8 with few exact rows": {"kv": "q8", "kv_exact_recent": 16},
    "q8 without exact rows": {"kv": "q8", "kv_exact_recent": 0},
    "q8k": {"kv": "q8k"},
    "q8v": {"kv": "q8v", "kv_exact_recent": 0},
    "q4": {"kv": "q4"},
    "q4 with few exact rows": {"kv": "q4", "kv_exact_recent": 8},
}
QUICK = ("f16", "q8", "q4 with few exact rows")
PLANS = [("layers:1", "chain"), ("layers:2", "chain"), ("trisplit", "chain"), ("layers:2", "relay")]
CHUNKS = (1, 7, 64, 100_000)


def wire(options: dict[str, Any]) -> dict[str, Any]:
    """Keywords of the engine as the names on the wire."""
    return {name if name == "kv" else name.removeprefix("kv_"): value for name, value in options.items()}


@pytest.mark.parametrize("mode", MODES)
async def test_a_mode_gives_the_oracle_s_tokens_and_logits(mode: str, model: ModelFolder, plain: Plain) -> None:
    options = MODES[mode]
    expected = plain.generated(parse_kv_options(wire(options)))
    async with engine_on("layers:2", model, **options) as engine:
        assert await generated(engine, chunk=64) == expected


@pytest.mark.parametrize("mode", QUICK)
@pytest.mark.parametrize(("plan", "route"), PLANS)
async def test_every_plan_and_chunk_gives_the_same_tokens_and_logits(
    plan: str, route: str, mode: str, model: ModelFolder, plain: Plain
) -> None:
    expected = plain.generated(parse_kv_options(wire(MODES[mode])))
    chunks = CHUNKS if plan == "layers:1" else (7, 100_000)
    async with engine_on(plan, model, route=route, **MODES[mode]) as engine:
        for chunk in chunks:
            assert await generated(engine, chunk=chunk) == expected, chunk


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("route", ["chain", "relay"])
@pytest.mark.parametrize("plan", ["layers:1", "layers:3", "trisplit", "trisplit:per-layer", "trisplit+shards=2"])
async def test_all_modes_on_all_plans_routes_and_chunks(
    plan: str, route: str, mode: str, model: ModelFolder, plain: Plain
) -> None:
    expected = plain.generated(parse_kv_options(wire(MODES[mode])))
    async with engine_on(plan, model, route=route, **MODES[mode]) as engine:
        for chunk in CHUNKS:
            assert await generated(engine, chunk=chunk) == expected, chunk


@pytest.mark.parametrize("mode", QUICK)
async def test_threads_and_company_change_no_bit(mode: str, model: ModelFolder, plain: Plain) -> None:
    expected = plain.generated(parse_kv_options(wire(MODES[mode])))
    other = PROMPT[::-1]
    async with engine_on("layers:2", model, threads=2, **MODES[mode]) as engine:
        alone = await generated(engine, other, chunk=64)
        assert alone != expected
        together = await asyncio.gather(generated(engine, chunk=7), generated(engine, other), generated(engine))
    assert together == [expected, alone, expected]


@pytest.mark.parametrize("mode", QUICK)
async def test_reference_kernels_keep_rows_the_same_way(mode: str, model: ModelFolder) -> None:
    prompt = PROMPT[:70]  # past the barrier at 64
    expected = Plain(model, "reference").generated(parse_kv_options(wire(MODES[mode])), prompt, 6)
    async with engine_on("layers:2", model, kernels="reference", **MODES[mode]) as engine:
        assert (await generated(engine, prompt, 6, chunk=1)).tokens == expected.tokens
        assert engine.setting.exactness.cut == "bounded"


async def test_a_mode_changes_logits_and_is_declared(model: ModelFolder, plain: Plain) -> None:
    hashes = {mode: plain.generated(parse_kv_options(wire(options)), tokens=4) for mode, options in MODES.items()}
    hashes["f32"] = plain.generated(parse_kv_options({}), tokens=4)
    assert len({outcome.logits_hash for outcome in hashes.values()}) == len(hashes)
    declared = {}
    for mode in ("f32", "f16", "q8", "q4"):
        async with engine_on("layers:1", model, kv=mode) as engine:
            result = await engine.generate(PROMPT, max_tokens=1, ignore_eos=True).collect()
            status = await engine.status()
        recent = {"exact_recent": DEFAULT_EXACT_RECENT[mode]} if mode in CODED_MODES else {}
        assert result.kv == status["kv"] == {"kv": mode, **recent}
        declared[mode] = (result.exactness.cut, result.exactness.model)
    assert declared == {
        "f32": ("exact", "exact"), "f16": ("exact", "bounded"), "q8": ("exact", "certified"),
        "q4": ("exact", "certified"),
    }  # fmt: skip
