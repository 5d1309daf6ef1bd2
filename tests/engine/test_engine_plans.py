"""However a model is cut, the tokens and the logits are the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from host import Engine
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, local_fleet

PROMPT = "The stations pass a token along."
TOKENS = 12


async def hash_and_tokens(
    plan: str, route: str, model: ModelFolder, **options: object
) -> tuple[str | None, tuple[int, ...]]:
    async with (
        local_fleet(plan, model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, route=route, transport="websockets") as engine,
    ):
        generation = engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, logits_hash=True, **options)
        result = await generation.collect()
        return result.logits_hash, result.token_ids


@pytest.fixture(scope="module")
def oracle(model: ModelFolder) -> tuple[str | None, tuple[int, ...]]:
    return asyncio.run(hash_and_tokens("layers:1", "relay", model, prefill_chunk=1))


@pytest.mark.parametrize("route", ["chain", "relay"])
@pytest.mark.parametrize(
    "plan", ["layers:1", "layers:2", "layers:3+head-shards=2", "trisplit", "trisplit+shards=8", "trisplit:per-layer"]
)
async def test_every_plan_and_route_gives_the_same_tokens_and_logits(
    plan: str, route: str, model: ModelFolder, oracle: tuple[str | None, tuple[int, ...]]
) -> None:
    assert len(oracle[1]) == TOKENS
    assert await hash_and_tokens(plan, route, model) == oracle


@pytest.mark.parametrize("plan", ["layers:2", "trisplit"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 100_000])
async def test_prefill_chunks_of_any_size_give_the_same_tokens_and_logits(
    plan: str, chunk: int, model: ModelFolder, oracle: tuple[str | None, tuple[int, ...]]
) -> None:
    assert await hash_and_tokens(plan, "chain", model, prefill_chunk=chunk) == oracle


@pytest.mark.parametrize(
    ("plan", "chain_hops", "relay_hops"), [("layers:1", 2, 6), ("layers:3", 4, 10), ("trisplit", 15, 28)]
)
async def test_hops_and_bytes_a_token_are_measured(
    plan: str, chain_hops: int, relay_hops: int, model: ModelFolder
) -> None:
    async with local_fleet(plan, model) as fleet:
        for route, hops in (("chain", chain_hops), ("relay", relay_hops)):
            async with Engine.connect(fleet.urls, token=TOKEN, route=route, transport="websockets") as engine:
                result = await engine.generate(PROMPT, max_tokens=3, ignore_eos=True).collect()
                assert result.hops_per_token == hops
                assert result.route == route
                if route == "relay":
                    relayed = result.bytes_per_token
                else:
                    chained = result.bytes_per_token
    assert 0 < chained < relayed


async def test_bytes_a_token_of_a_chain_are_those_its_links_carry(model: ModelFolder) -> None:
    async with (
        local_fleet("trisplit", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):

        async def bytes_sent() -> int:
            """Tensor frames only: each decoded token adds the same, whatever heartbeats go beside."""
            status = await engine.status()
            carried = sum(station["stats"]["messages_forwarded"] for station in status["stations"])
            return int(carried)

        before = await bytes_sent()
        first = await engine.generate(PROMPT, max_tokens=1, ignore_eos=True).collect()
        between = await bytes_sent()
        longer = await engine.generate(PROMPT, max_tokens=6, ignore_eos=True).collect()
        after = await bytes_sent()
        per_token = ((after - between) - (between - before)) / 5
        assert per_token == 4 * 4 + 1  # n, h, u, x of four layers, and x of the embedding
        card = model.card
        overhead, hidden, ffn = 58, 4 * card.hidden_size, 4 * card.ffn_size
        inside = 1 + 4 * 4
        wanted = inside * overhead + (1 + 3 * 4) * hidden + 4 * ffn
        wanted += 2 * overhead + 4 + 4 * card.vocab_size
        assert longer.bytes_per_token == first.bytes_per_token == wanted


async def test_a_station_with_several_shards_gets_its_ids_once(
    model: ModelFolder, oracle: tuple[str | None, tuple[int, ...]], tmp_path: Path
) -> None:
    plan = tmp_path / "mixed.toml"
    plan.write_text(
        '[[station]]\nname = "a"\nroles = ["embed:0/3", "embed:2/3", "block:0-1", "head:1/3"]\n'
        '[[station]]\nname = "b"\nroles = ["embed:1/3", "block:2-3", "head:0/3", "head:2/3"]\n'
    )
    async with (
        local_fleet(str(plan), model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):
        result = await engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, logits_hash=True).collect()
        assert (result.logits_hash, result.token_ids) == oracle
        assert [station.core.counters.events["duplicate_parts"] for station in fleet.stations] == [0, 0]
    assert await hash_and_tokens(str(plan), "relay", model) == oracle
