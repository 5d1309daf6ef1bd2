"""Cores of a trisplit fleet joined by queues, with somebody on the line who may do what he likes with seeds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from aeonflow import Flags, bands
from aeonflow.tensors import Tensor
from stations.kernels.base import Backend
from stations.models.folder import ModelFolder
from tests.station.cores import Answer, CoreNet, ids_tensor


class SeedMessage(NamedTuple):
    """A seed on an edge."""

    stream: int
    sequence: int
    payload: bytes


Tamper = Callable[[SeedMessage], list[SeedMessage]]


def as_sent(seed: SeedMessage) -> list[SeedMessage]:
    return [seed]


class SeedNet(CoreNet):
    """Every seed that crosses from one station to another passes `tamper`, which says what arrives in its place."""

    def __init__(
        self,
        model: ModelFolder,
        stations: list[str],
        backends: dict[int, Backend] | None = None,
        *,
        tamper: Tamper = as_sent,
        **route: Any,
    ) -> None:
        self.tamper = tamper
        self.seeds_seen = 0
        super().__init__(model, stations, backends, **route)

    def put(self, source: int, target: int, stream: int, payload: bytes, flags: Flags, sequence: int = 1) -> None:
        if not bands.is_seed(stream) or source < 0:
            super().put(source, target, stream, payload, flags, sequence)
            return
        self.seeds_seen += 1
        for seed in self.tamper(SeedMessage(stream, sequence, payload)):
            super().put(source, target, seed.stream, seed.payload, flags, seed.sequence)

    def decode(self, ids: list[int], rng: random.Random | None = None, **fields: Any) -> list[Answer]:
        """Rows one at a time, each once the one before is through; the answers."""
        answers: list[Answer] = []
        for at, token in enumerate(ids):
            self.send(ids_tensor([token], first=at, rows=1, **fields))
            answers += self.run(rng)
        return answers

    def pipeline(self, one: Tensor, *more: Tensor, rng: random.Random | None = None) -> list[Answer]:
        """Passes that travel together."""
        for tensor in (one, *more):
            self.send(tensor)
        return self.run(rng)

    def total(self, key: str) -> int:
        """A counter, summed over the stations."""
        return sum(station.counters.events[key] for station in self.stations)

    def counters(self) -> Counter[str]:
        """All counters that are not 0, summed."""
        found: Counter[str] = Counter()
        for station in self.stations:
            found.update(station.counters.events)
        return +found

    def waiting_slots(self) -> int:
        """Seed slots that wait, over all sessions of all stations."""
        return sum(len(session.seeds) for station in self.stations for session in station.sessions)
