"""Stations that are killed or frozen in the middle of an answer: what the user is told, and that the fleet goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from aeonflow.errors import DeadlineError, StationLostError
from host import Engine

from .conftest import KERNELS, WAIT_S, drained, short_answer, under_way


async def pid_of(engine: Engine, name: str) -> int:
    """Asked before a generation begins: a status takes time, in which it might end."""
    status = await engine.status()
    return int(next(station["pid"] for station in status["stations"] if station["name"] == name))


def launched(model: Path, plan: str, **options: Any) -> AbstractAsyncContextManager[Engine]:
    return Engine.launch(model=str(model), plan=plan, kernels=KERNELS, **options)


SLOW = pytest.mark.slow  # the same on other stations


@pytest.mark.parametrize("victim", [pytest.param("attn", marks=SLOW), pytest.param("down", marks=SLOW), "ends"])
async def test_a_station_killed_mid_token_is_named_with_its_signal_and_the_next_request_is_served(
    victim: str, tiny_model: Path
) -> None:
    async with asyncio.timeout(2 * WAIT_S), launched(tiny_model, "trisplit") as engine:
        expected, pid = await short_answer(engine), await pid_of(engine, victim)
        generation = await under_way(engine)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StationLostError, match=rf"station {victim} .*killed by SIGKILL"):
            await drained(generation)
        assert await short_answer(engine) == expected
        assert (await engine.status())["ready"]


async def test_other_engines_go_on_while_a_station_of_one_is_killed(tiny_model: Path) -> None:
    async with (
        asyncio.timeout(2 * WAIT_S),
        launched(tiny_model, "layers:2") as engine,
        launched(tiny_model, "layers:2") as other,
    ):
        expected, pid = await short_answer(other), await pid_of(engine, "layers-0")
        broken, unharmed = await under_way(engine), other.generate("Hello", max_tokens=12, ignore_eos=True)
        await anext(unharmed)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StationLostError, match="layers-0"):
            await drained(broken)
        assert (await unharmed.collect()).token_ids == expected


async def test_a_frozen_station_is_named_by_the_deadline_and_serves_again_when_it_wakes(tiny_model: Path) -> None:
    async with (
        asyncio.timeout(2 * WAIT_S),
        launched(tiny_model, "trisplit", deadline_s=1.0) as engine,
    ):
        expected, pid = await short_answer(engine), await pid_of(engine, "gate_up")
        generation = await under_way(engine)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DeadlineError, match=r"within 1 s: station gate_up .*does not answer"):
            await drained(generation)
        os.kill(pid, signal.SIGCONT)
        assert await short_answer(engine) == expected


@pytest.mark.slow  # the launcher gives stations 7 s to drain
async def test_leaving_the_block_while_a_station_is_frozen_leaves_no_process(tiny_model: Path) -> None:
    async with launched(tiny_model, "layers:2") as engine:
        pids = [await pid_of(engine, name) for name in ("layers-0", "layers-1")]
        os.kill(pids[0], signal.SIGSTOP)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
