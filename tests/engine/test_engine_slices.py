"""Slices of the ffn: with fast kernels the logits of 2, 4 and 8 slices are those of one process, bit for bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aeonflow.errors import StationLostError
from host import Engine
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, local_fleet

PROMPT = "The stations pass a token along, and the next takes it on."
TOKENS = 12
LAYERS = 4

Hashed = tuple[str | None, tuple[int, ...]]


async def hash_and_tokens(engine: Engine, chunk: int | None = None) -> Hashed:
    generation = engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, logits_hash=True, prefill_chunk=chunk)
    result = await generation.collect()
    return result.logits_hash, result.token_ids


@pytest.fixture(scope="module")
def folder(tiny_model: Path) -> ModelFolder:
    return ModelFolder.open(tiny_model)


@pytest.fixture(scope="module")
def solo(tiny_model: Path) -> Hashed:
    async def run() -> Hashed:
        async with Engine.launch(model=str(tiny_model), plan="solo") as engine:
            return await hash_and_tokens(engine)

    return asyncio.run(run())


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("slices", "route"),
    [
        (2, "chain"),
        (4, "relay"),
        (8, "chain"),
        pytest.param(2, "relay", marks=SLOW),
        pytest.param(4, "chain", marks=SLOW),
        pytest.param(8, "relay", marks=SLOW),
    ],
)
async def test_slices_give_the_tokens_and_logits_of_solo_in_any_chunks(
    slices: int, route: str, folder: ModelFolder, solo: Hashed
) -> None:
    assert len(solo[1]) == TOKENS
    async with (
        local_fleet(f"ffslice:{slices}", folder, "fast") as fleet,
        Engine.connect(fleet.urls, token=TOKEN, route=route, transport="websockets") as engine,
    ):
        for chunk in (1, 7, 100_000):
            assert await hash_and_tokens(engine, chunk) == solo
        assert engine.setting.exactness.cut == "exact"


@pytest.mark.parametrize(
    "stations",
    [
        ["embed,attn:0-3,head:0/2", "ffn:0-3:0/2,head:1/2", "ffn:0-3:1/2"],
        ["embed:0/2,block:0-0,attn:1-1", "ffn:1-1:1/2,ffn:1-1:0/2,attn:2-3",
         "embed:1/2,gate_up:2-2,ffn:3-3:0/4,ffn:3-3:3/4",
         "down:2-2,ffn:3-3:1/4,ffn:3-3:2/4,head:0/3,head:2/3,head:1/3"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("route", ["chain", "relay"])
async def test_slices_mix_with_other_roles(
    stations: list[str], route: str, folder: ModelFolder, solo: Hashed, tmp_path: Path
) -> None:
    plan = tmp_path / "mixed.toml"
    tables = (f'[[station]]\nname = "s{index}"\nroles = "{roles}"\n' for index, roles in enumerate(stations))
    plan.write_text("".join(tables))
    async with (
        local_fleet(str(plan), folder, "fast") as fleet,
        Engine.connect(fleet.urls, token=TOKEN, route=route, transport="websockets") as engine,
    ):
        assert await hash_and_tokens(engine, 5) == solo
        assert [station.core.counters.events["duplicate_parts"] for station in fleet.stations] == [0] * len(stations)


async def test_sessions_side_by_side_over_slices_get_what_they_get_alone(folder: ModelFolder, solo: Hashed) -> None:
    async with (
        local_fleet("ffslice:2+shards=2", folder, "fast") as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):
        assert await asyncio.gather(*(hash_and_tokens(engine, chunk) for chunk in (None, 3, 9))) == [solo] * 3


@pytest.mark.parametrize(("plan", "chain_hops", "relay_hops"), [("ffslice:2", 11, 20), ("ffslice:8", 11, 20)])
async def test_hops_and_bytes_of_slices_are_those_the_plan_foretells(
    plan: str, chain_hops: int, relay_hops: int, folder: ModelFolder
) -> None:
    async with local_fleet(plan, folder, "fast") as fleet:
        for route, hops in (("chain", chain_hops), ("relay", relay_hops)):
            async with Engine.connect(fleet.urls, token=TOKEN, route=route, transport="websockets") as engine:
                result = await engine.generate(PROMPT, max_tokens=3, ignore_eos=True).collect()
                assert result.hops_per_token == hops
        slices = len(fleet.stations) - 2
        forwarded = [station.core.counters.events["messages_forwarded"] for station in fleet.stations]
        passes = forwarded[1] // LAYERS
        assert forwarded == [passes * (LAYERS * slices + 1), *[passes * LAYERS] * slices, passes]


async def test_a_lost_slice_is_named_and_the_next_request_is_right(folder: ModelFolder, solo: Hashed) -> None:
    async with (
        local_fleet("ffslice:2", folder, "fast") as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):
        station = fleet.station("ffn-1")
        generation = engine.generate(PROMPT, max_tokens=200, ignore_eos=True)
        await anext(aiter(generation))
        await station.stop()
        with pytest.raises(StationLostError, match="ffn-1"):
            await generation.collect()
        await station.start()
        assert await hash_and_tokens(engine) == solo
