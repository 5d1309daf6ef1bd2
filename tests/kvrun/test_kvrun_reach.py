"""KV options reach the stations that keep the rows, and rows keep the rotation of the position they came at."""

from __future__ import annotations

from typing import Any

import pytest

from host.sequence import TokenSequence
from stations.core.station import Station
from stations.kv import LayerKvCache
from stations.models.folder import ModelFolder

from .fleets import connected, stations
from .speculating_host import Asked

TOKENS = [(i * i + 7 * i) % 512 for i in range(300)]


def caches_of(core: Station, sequence: TokenSequence) -> dict[int, LayerKvCache]:
    session = core.sessions.get(sequence.session)
    assert session is not None
    return session.caches


@pytest.mark.parametrize(
    ("keywords", "shown", "mode", "window", "keeps_mass"),
    [
        ({}, "f32", "f32", 0, False),
        ({"kv": "q8", "kv_exact_recent": 8}, "q8 exact_recent=8", "q8", 0, False),
        ({"kv": "f16", "window": 40}, "f16 window=40", "f16", 40, False),
        ({"kv_max": 128, "kv_sink": 2}, "f32 max_rows=128 sink=2", "f32", 0, True),
        ({"kv_max": 128, "kv_evict": "recent"}, "f32 max_rows=128 evict=recent", "f32", 0, False),
    ],
)
async def test_every_station_shows_the_options_and_keeps_its_rows_so(
    keywords: dict[str, Any], shown: str, mode: str, window: int, keeps_mass: bool, model: ModelFolder
) -> None:
    async with stations("layers:2", model) as running, connected(running, **keywords) as engine:
        sequence = await engine.network.open(40)
        await Asked(sequence).prefill(TOKENS[:20], 20)
        status = await engine.status()
        assert [station["stats"]["kv_sessions"] for station in status["stations"]] == [{shown: 1}] * 2
        for _, core in running.values():
            for cache in caches_of(core, sequence).values():
                assert (cache.mode, cache.reading.window, cache.reading.keeps_mass) == (mode, window, keeps_mass)
                assert cache.pos_len == 20


@pytest.mark.parametrize("evict", ["born", "recent"])
async def test_keys_are_rotated_once_whatever_leaves_before_and_behind_them(evict: str, model: ModelFolder) -> None:
    async with stations("layers:1", model) as running:
        ((_, core),) = running.values()
        kept = []
        for keywords in ({}, {"kv_max": 128, "kv_evict": evict}):
            async with connected(running, **keywords) as engine:
                sequence = await engine.network.open(len(TOKENS))
                await Asked(sequence).prefill(TOKENS, 100)
                kept.append(caches_of(core, sequence)[0])
    whole, evicted = kept
    assert evicted.seq_len < 128 < evicted.pos_len == whole.pos_len == len(TOKENS)
    for head in range(model.card.num_kv_heads):  # keys of the first layer depend on token and position only
        assert (evicted.head_keys(head) == whole.head_keys(head)[evicted.positions]).all()
        assert (evicted.head_values(head) == whole.head_values(head)[evicted.positions]).all()
