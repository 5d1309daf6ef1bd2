"""O(1) layers in running stations: sealed at one position, the same tokens on every cut, constant bytes, opt-in."""

from __future__ import annotations

from typing import Any

import pytest

from aeonflow.errors import BadMessageError
from aeonflow.kv_options import Barrier, KvOptions, parse_kv_options
from aeonflow.tensors import Want
from host.errors import InvalidRequestError
from host.kv_options import make_kv_options, parse_overlay
from stations.models.folder import ModelFolder

from .fleets import PROMPT, Outcome, Plain, connected, engine_on, generated, stations
from .speculating_host import Asked, speculated

OVERLAY = "m=8,w=24,sink=2"
KEYWORDS: dict[str, Any] = {"o1": OVERLAY, "approximate": True}
SOME_LAYERS: dict[str, Any] = {"o1": OVERLAY + ",layers=1-2,at=90", "approximate": True}
BOUNDARY = 8 * 8 + 32


def options_of(keywords: dict[str, Any]) -> KvOptions:
    return parse_kv_options({"o1": parse_overlay(keywords["o1"])})


@pytest.mark.parametrize("keywords", [KEYWORDS, SOME_LAYERS], ids=["all layers", "two layers"])
@pytest.mark.parametrize(("plan", "route"), [("layers:2", "chain"), ("trisplit", "relay")])
async def test_every_plan_and_chunk_gives_the_same_tokens_and_logits(
    plan: str, route: str, keywords: dict[str, Any], model: ModelFolder, plain: Plain
) -> None:
    prompt = PROMPT[:110]
    expected = plain.generated(options_of(keywords), prompt, 20)
    assert expected != plain.generated(parse_kv_options({}), prompt, 20)
    async with engine_on(plan, model, route=route, **keywords) as engine:
        for chunk in (7, 100_000):
            assert await generated(engine, prompt, 20, chunk) == expected, chunk
        assert (engine.setting.exactness.cut, engine.setting.exactness.model) == ("exact", "approximate")


async def test_reference_kernels_run_overlays_too(model: ModelFolder) -> None:
    prompt = PROMPT[:100]
    expected = Plain(model, "reference").generated(options_of(KEYWORDS), prompt, 4)
    async with engine_on("layers:2", model, kernels="reference", **KEYWORDS) as engine:
        assert (await generated(engine, prompt, 4, chunk=1)).tokens == expected.tokens


async def test_wrong_rows_before_the_seal_leave_no_trace(model: ModelFolder, plain: Plain) -> None:
    prompt = PROMPT[:40]
    expected = plain.generated(options_of(KEYWORDS), prompt, 70)
    async with engine_on("layers:2", model, **KEYWORDS) as engine:
        assert await speculated(engine, prompt, expected.tokens, chunk=7, seed=5) == expected


async def test_rows_of_a_sealed_layer_since_its_last_barrier_can_be_taken_back_and_no_others(
    model: ModelFolder, plain: Plain
) -> None:
    prompt = [*PROMPT, *PROMPT][: BOUNDARY + 70]
    expected = plain.generated(options_of(KEYWORDS), prompt, tokens=1)
    async with engine_on("layers:2", model, **KEYWORDS) as engine:
        sequence = await engine.network.open(300)
        assert sequence.barriers == (Barrier(BOUNDARY), Barrier(BOUNDARY, 64))
        host = Asked(sequence)
        await host.prefill(prompt[:-4], 100)
        await host.send([3, 1, 4, 1, 5], Want.LAST)
        sequence.restart(len(prompt) - 4)
        assert not sequence.is_cut_too_deep
        answer = await host.send(prompt[-4:], Want.LAST)
        assert answer.logits is not None
        assert int(answer.logits[-1].argmax()) == expected.tokens[0]
        sequence.restart(BOUNDARY + 64)
        assert not sequence.is_cut_too_deep
        sequence.restart(BOUNDARY + 63)
        assert sequence.is_cut_too_deep


async def test_drafts_behind_the_seal_leave_no_trace(model: ModelFolder, plain: Plain) -> None:
    prompt = PROMPT[:110]
    expected = plain.generated(options_of(KEYWORDS), prompt, 60)
    async with engine_on("layers:2", model, **KEYWORDS) as engine:
        assert await speculated(engine, prompt, expected.tokens, chunk=7, seed=6) == expected


async def test_edited_history_is_computed_anew(model: ModelFolder, plain: Plain) -> None:
    edited = [*PROMPT[:120], *PROMPT[125:]]
    async with engine_on("layers:2", model, **KEYWORDS) as engine, engine.session() as session:
        await session.generate(PROMPT, max_tokens=5, ignore_eos=True).collect()
        again = await session.generate(edited, max_tokens=20, ignore_eos=True, logits_hash=True).collect()
    assert Outcome(again.token_ids, again.logits_hash or "") == plain.generated(options_of(KEYWORDS), edited, 20)


async def test_bytes_stay_the_same_once_layers_are_sealed_and_heads_are_reported(model: ModelFolder) -> None:
    async with stations("layers:1", model) as running, connected(running, **KEYWORDS) as engine:
        ((_, core),) = running.values()
        sequence = await engine.network.open(1000)
        host = Asked(sequence)
        sizes = set()
        for end in (BOUNDARY + 1, BOUNDARY + 2, BOUNDARY + 200):
            await host.prefill([i % 512 for i in range(end)], 100)
            session = core.sessions.get(sequence.session)
            assert session is not None
            sizes.add(session.cached_bytes())
            assert session.cached_bytes() <= session.kv_bytes
        assert len(sizes) == 1
        status = await engine.status()
        (station,) = status["stations"]
        assert station["stats"]["overlay_heads"] == 4 * 4
        assert 0 <= station["stats"]["overlay_far_heads"] <= 16
        engine.network.close_session(sequence)
    assert core.sessions.reserved_bytes == 0


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"o1": OVERLAY, "kv": "q8"}, "o1 and kv=q8 contradict"),
        ({"o1": OVERLAY, "window": 40}, "o1 and window=40 contradict"),
        ({"o1": OVERLAY, "kv_max": 200}, "o1 and kv_max=200 contradict"),
        ({}, "approximate without o1"),
        ({"o1": "m=2"}, "m=2, w=128, sink=4: m is 4 to 1024"),
        ({"o1": "w=0"}, "w=0"),
        ({"o1": "m=many"}, "'m=many' is not NAME=NUMBER"),
        ({"o1": "layers=2-x"}, "'layers=2-x' is not"),
        ({"o1": "layers=9-2"}, "'layers=9-2' is not"),
        ({"o1": "layers=0-99999999999"}, "HI < 1024"),
        ({"o1": "n=3"}, "unknown field `n`"),
        ({"o1": "m=32,w=64,m=8"}, "m is given twice"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(keywords: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        make_kv_options(approximate=True, **keywords)


async def test_layers_the_model_does_not_have_are_refused(model: ModelFolder) -> None:
    with pytest.raises(BadMessageError, match=r"o1 of layers \[2, 9\]: the model has 4"):
        async with engine_on("layers:2", model, o1="layers=2+9", approximate=True):
            raise AssertionError("the probe was let in")
