"""A compute thread that hangs: its station goes on answering, and its heartbeats tell for how long it has computed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aeonflow.errors import DeadlineError
from host import Engine
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, LocalStation, local_fleet

WAIT_S = 30.0
DEADLINE_S = 2.5  # a heartbeat comes every second: the last one before the deadline tells of more than half of it


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def hang_in_compute(station: LocalStation, released: threading.Event) -> None:
    """Whatever attn computes next does not come back before `released`."""
    backend: Any = station.core.backend
    attn = backend.attn

    def blocking(*args: Any) -> Any:
        assert released.wait(WAIT_S)
        return attn(*args)

    backend.attn = blocking


async def test_a_hung_compute_thread_is_named_with_the_age_of_its_batch(
    model: ModelFolder, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stations.server.shell.INLINE_LIMIT_S", -1.0)  # every batch goes to the compute thread
    async with (
        local_fleet("trisplit", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets", deadline_s=DEADLINE_S) as engine,
    ):
        generation = engine.generate("Hello", max_tokens=400, ignore_eos=True)
        await anext(generation)
        hang_in_compute(fleet.station("attn"), released)
        with pytest.raises(DeadlineError, match=r"station attn .*has not passed it on: its batch has run for [1-9]"):
            await generation.collect()
        status = await engine.status()
        hung = {station["name"]: station for station in status["stations"]}
        assert not status["ready"]
        assert "station attn" in status["problem"]
        assert hung["attn"]["busy_s"] >= DEADLINE_S / 2
        assert (hung["down"]["busy_s"], hung["down"]["queued"]) == (0.0, 0)
        assert not any(station["suspected"] for station in status["stations"])
        released.set()
        assert (await engine.generate("Hello", max_tokens=2, ignore_eos=True).collect()).token_ids
