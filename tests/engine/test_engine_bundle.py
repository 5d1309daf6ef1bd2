"""The model's bundle as a host fetches it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from host import Engine, card
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, local_fleet

WAIT_S = 20.0


async def test_the_event_loop_turns_while_a_bundle_is_read(model: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats go on: a large tokenizer takes seconds on a busy machine, and silent hosts are given up."""
    loop, read, turned = asyncio.get_running_loop(), card.read_bundle, threading.Event()
    has_turned: list[bool] = []

    def read_once_it_has_turned(payload: bytes) -> card.ModelBundle:
        loop.call_soon_threadsafe(turned.set)
        has_turned.append(turned.wait(WAIT_S))  # in the loop's own thread this would wait in vain
        return read(payload)

    monkeypatch.setattr(card, "read_bundle", read_once_it_has_turned)
    async with local_fleet("solo", model) as fleet, Engine.connect(fleet.urls, token=TOKEN) as engine:
        assert engine.card.name == model.card.name
    assert has_turned == [True]
