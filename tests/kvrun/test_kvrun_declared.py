"""What a model's card declares of attention: windows of its layers, softcap, scale, learned sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from aeonflow.errors import UnsupportedError
from aeonflow.kv_options import Barrier, KvOptions, parse_kv_options
from stations.core.kv_layout import KvLayout
from stations.kernels import Span, make_backend
from stations.kernels.weights import learned_sinks
from stations.models.card import Attention
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles
from stations.models.synthetic import build_synthetic

from .fleets import PROMPT, Plain, connected, engine_on, generated, stations
from .forward import logits_f64
from .speculating_host import Asked, speculated
from .test_kvrun_modes import wire

WINDOW = 24
SPEC = (
    "synthetic:layers=4,hidden=64,heads=4,kv_heads=2,ffn=256,vocab=512,context=1024,seed=7,"
    f"window={WINDOW},softcap=6,scalar=9,sinks=1"
)
OPTIONS: dict[str, dict[str, Any]] = {
    "f32": {},
    "f16": {"kv": "f16"},
    "q8": {"kv": "q8", "kv_exact_recent": 8},
    "q4": {"kv": "q4", "kv_exact_recent": 8},
    "born on the other layers": {"kv_max": 128},
    "a narrower window everywhere": {"window": 20},
}
PLANS = [("layers:1", "chain"), ("layers:2", "chain"), ("trisplit", "chain"), ("ffslice:2", "chain")]


def options_of(name: str) -> KvOptions:
    names = {"max": "max_rows"}
    return parse_kv_options({names.get(option, option): value for option, value in wire(OPTIONS[name]).items()})


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return build_synthetic(SPEC, tmp_path_factory.mktemp("declared") / "model")


@pytest.fixture(scope="module")
def oracle(declared: ModelFolder) -> Plain:
    return Plain(declared)


@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_both_kernel_sets_compute_what_the_card_declares(kernels: str, declared: ModelFolder) -> None:
    card = declared.card
    roles = all_roles(card.num_layers)
    backend = make_backend(kernels, declared, roles)
    layout = KvLayout(card, KvOptions(), learned_sinks(declared, roles))
    caches = [layout.new_cache(layer, 200) for layer in range(card.num_layers)]
    ids = np.array(PROMPT[:100], np.uint32)
    x = backend.block(0, 3, backend.embed(ids, 0, 1), [[Span(cache, 0, len(ids))] for cache in caches])
    logits = backend.head(x, 0, 1)
    exact = logits_f64(declared, PROMPT[:100])
    assert np.abs(logits - exact).max() < 1e-4 * np.abs(exact).max()
    for name, plain in {"windows": (), "softcap": 0.0, "scale": 0.0, "has_sinks": False}.items():
        other = msgspec.structs.replace(card, attention=msgspec.structs.replace(card.attention, **{name: plain}))
        assert np.abs(logits_f64(declared, PROMPT[:100], other) - exact).max() > 0.05 * np.abs(exact).max(), name


@pytest.mark.parametrize("name", OPTIONS)
async def test_every_plan_and_chunk_gives_the_same_tokens_and_logits(
    name: str, declared: ModelFolder, oracle: Plain
) -> None:
    expected = oracle.generated(options_of(name))
    alone = [("layers:4", "chain")] if name == "born on the other layers" else []  # no barriers of sliding layers there
    for plan, route in PLANS if name == "f32" else PLANS[1:3] + alone:
        async with engine_on(plan, declared, route=route, **OPTIONS[name]) as engine:
            for chunk in (7, 100_000):
                assert await generated(engine, chunk=chunk) == expected, (plan, chunk)
            if name == "f32":
                assert engine.setting.exactness.model == "exact"


async def test_reference_kernels_generate_the_same_tokens(declared: ModelFolder, oracle: Plain) -> None:
    expected = oracle.generated(KvOptions(), PROMPT[:60], 8)
    async with engine_on("layers:2", declared, kernels="reference") as engine:
        assert (await generated(engine, PROMPT[:60], 8)).tokens == expected.tokens


@pytest.mark.parametrize("name", OPTIONS)
async def test_wrong_rows_that_an_epoch_cuts_leave_no_trace(name: str, declared: ModelFolder, oracle: Plain) -> None:
    expected = oracle.generated(options_of(name))
    async with engine_on("layers:2", declared, **OPTIONS[name]) as engine:
        assert await speculated(engine, PROMPT, expected.tokens, chunk=7, seed=8) == expected


async def test_resumption_from_tokens_gives_the_same_tokens(declared: ModelFolder, oracle: Plain) -> None:
    edited = [*PROMPT[:90], *PROMPT[100:]]  # below the last position at which sliding layers dropped rows
    async with engine_on("trisplit", declared) as engine, engine.session() as session:
        await session.generate(PROMPT, max_tokens=5, ignore_eos=True).collect()
        again = await session.generate(edited, max_tokens=20, ignore_eos=True).collect()
    assert again.usage.cached_tokens == 0
    assert again.token_ids == oracle.generated(KvOptions(), edited, 20).tokens


async def test_sliding_layers_hold_and_reserve_no_more_than_they_need(declared: ModelFolder) -> None:
    async with stations("layers:1", declared) as running, connected(running) as engine:
        ((_, core),) = running.values()
        sequence = await engine.network.open(1000)
        assert sequence.barriers == (Barrier(2 * WINDOW + 1, WINDOW + 1),)
        most = [0, 0, 0, 0]
        for end in range(100, 500, 50):
            await Asked(sequence).prefill([i % 512 for i in range(end)], 10)
            session = core.sessions.get(sequence.session)
            assert session is not None
            most = [max(rows, session.caches[layer].seq_len) for layer, rows in enumerate(most)]
            assert session.cached_bytes() <= session.kv_bytes
        row_bytes = 2 * 2 * 16 * 4
        assert most[1] == most[3] == 450
        assert max(most[0], most[2]) <= 2 * WINDOW + 1
        assert session.kv_bytes < 2 * row_bytes * (1000 + 4 * WINDOW + 120)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": 25}, "window=25 and the model's own window of 24 rows at layer 0 contradict each other"),
        ({"o1": "m=8,w=24", "approximate": True}, r"o1 on a model with sliding windows, softcap 6, attention scale"),
    ],
)
async def test_options_that_contradict_the_card_are_refused_at_start(
    options: dict[str, Any], reason: str, declared: ModelFolder
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        async with engine_on("layers:2", declared, **options):
            raise AssertionError("the probe was let in")


def test_what_is_declared_is_part_of_the_model_s_identity(declared: ModelFolder, tmp_path: Path) -> None:
    assert declared.card.attention == Attention((WINDOW, 0, WINDOW, 0), 6.0, 9**-0.5, True)
    seen = {declared.card.fingerprint}
    for other in ("window=23", "softcap=7", "scalar=8", "sinks=0", "full_every=0"):
        seen.add(build_synthetic(f"{SPEC},{other}", tmp_path / "other").card.fingerprint)
    assert len(seen) == 6
