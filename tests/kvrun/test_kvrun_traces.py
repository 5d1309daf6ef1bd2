"""Every option on one cut: rows in doubt, cancellations and edits of the history leave no trace in tokens or caches."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aeonflow.errors import OverloadedError
from aeonflow.kv_options import KvOptions
from aeonflow.tensors import Want
from host.kv_options import make_kv_options
from stations.core.station import Station
from stations.kv import LayerKvCache
from stations.models.folder import ModelFolder

from .fleets import Outcome, Plain, connected, engine_on, generated, stations
from .speculating_host import Asked, speculated
from .test_kvrun_bounded import BOUNDED
from .test_kvrun_bounded import QUICK as BOUNDED_QUICK
from .test_kvrun_modes import MODES
from .test_kvrun_modes import QUICK as MODES_QUICK

ALL: dict[str, dict[str, Any]] = {"f32": {}, **MODES, **BOUNDED, "sinks": {"kv_max": 128, "kv_sink": 30}}
REST = [name for name in ALL if name not in (*MODES_QUICK, *BOUNDED_QUICK)]  # of others there are tests of their own
PROMPT = [(57 * i + 5) % 512 for i in range(135)]
TOKENS = 40


def options_of(name: str) -> KvOptions:
    return make_kv_options(**ALL[name])


@pytest.mark.parametrize("name", REST)
async def test_an_option_gives_one_text_whatever_is_cut_on_the_way(name: str, model: ModelFolder, plain: Plain) -> None:
    expected = plain.generated(options_of(name), PROMPT, TOKENS)
    edited = [*PROMPT[:60], *PROMPT[70:]]
    async with engine_on("trisplit", model, **ALL[name]) as engine:
        assert await generated(engine, PROMPT, TOKENS, chunk=7) == expected
        assert await speculated(engine, PROMPT, expected.tokens, chunk=64, seed=11) == expected
        async with engine.session() as session:
            await session.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True).collect()
            again = await session.generate(edited, max_tokens=TOKENS, ignore_eos=True, logits_hash=True).collect()
    assert Outcome(again.token_ids, again.logits_hash or "") == plain.generated(options_of(name), edited, TOKENS)


def caches_of(core: Station) -> list[LayerKvCache]:
    (session,) = core.sessions
    assert session.cached_bytes() <= session.kv_bytes
    return [session.caches[layer] for layer in sorted(session.caches)]


async def emptied(cores: list[Station]) -> None:
    """Until the stations have heard that sessions were closed: nothing is reserved then."""
    async with asyncio.timeout(10):
        while any(len(core.sessions) for core in cores):  # noqa: ASYNC110  no event tells it
            await asyncio.sleep(0)
    assert [core.sessions.reserved_bytes for core in cores] == [0] * len(cores)


def contents(cache: LayerKvCache, rows: int) -> list[Any]:
    """Everything that the first rows of a sequence leave in a cache."""
    cache.settle(rows)
    cache.truncate_to(rows)
    heads = range(cache.num_kv_heads)
    arrays = [cache.head_keys(h) for h in heads] + [cache.head_values(h) for h in heads]
    arrays += [cache.importance, cache.positions]
    return [cache.pos_len, cache.base, cache.memory_bytes(), *(np.ascontiguousarray(a).tobytes() for a in arrays)]


@pytest.mark.parametrize("name", ["f16", "q8", "q4 with few exact rows", "born", "recent", "window"])
async def test_wrong_rows_and_cancelled_passes_leave_the_bytes_of_a_cache_that_never_saw_them(
    name: str, model: ModelFolder
) -> None:
    text = [(91 * i + 7) % 512 for i in range(170)]
    async with stations("layers:1", model) as running, connected(running, **ALL[name]) as engine:
        ((_, core),) = running.values()
        found = []
        for is_disturbed in (False, True):
            sequence = await engine.network.open(300)
            host = Asked(sequence)
            at = 0
            while at < len(text):
                rows = min(5, len(text) - at, sequence.room() or 5)
                if is_disturbed and rows > 1 and at:
                    await host.send([text[at], *([9] * (rows - 1))], Want.ALL, settled=at)
                    if at % 2:
                        sequence.restart(at)
                    else:  # told to the stations at once, with a pass still under way
                        sequence.restart(at)
                        sequence.send([3] * rows, Want.LAST, settled=at)
                        engine.network.cancel(sequence)
                await host.send(text[at : at + rows], Want.LAST)
                at += rows
            found.append([contents(cache, len(text)) for cache in caches_of(core)])
            engine.network.close_session(sequence)
            await emptied([core])
    assert found[0] == found[1]


async def test_a_session_that_one_station_has_no_room_for_takes_none_anywhere(model: ModelFolder) -> None:
    layer = 1000 * 2 * 2 * 16 * 4  # bytes of 1000 positions
    async with stations("layers:3", model, kv_budget_bytes=layer * 3 // 2) as running:
        cores = [core for _, core in running.values()]
        async with connected(running) as engine:
            with pytest.raises(OverloadedError, match=r"1000 positions needs 512,000 bytes of KV on 2 layers"):
                await engine.network.open(1000)
            await emptied(cores)
            sequence = await engine.network.open(700)
            assert sorted(core.sessions.reserved_bytes for core in cores)[-1] == 2 * 700 * layer // 1000
            assert not any(session.caches for core in cores for session in core.sessions), "before any row"
            engine.network.close_session(sequence)
            await emptied(cores)
