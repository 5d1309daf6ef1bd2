"""Whatever order events take, however often the host changes its mind: the tokens are those of an undisturbed run.

The host of these tests sends wrong rows, starts epochs over them while passes are under way, repeats frames, and lets
a seeded scheduler order every delivery and every batch. Invariants of the draft protocol: logits equal the plain run's
(I1), caches too (I2), rows shrink only at a new epoch and to its base (I4), nothing is sent under an older one (I6).
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aeonflow.tensors import Want
from stations.models.folder import ModelFolder

from .cores import Answer, CoreNet, PlainModel, f32, ids_tensor

TRISPLIT = ["attn:0-2", "gate_up:0-2", "down:0-2", "embed,head"]
PER_LAYER = ["attn:0-0,down:1-1", "gate_up:0-2,embed:0/2", "down:0-0,attn:1-2", "down:2-2,embed:1/2,head"]
IDS = [17, 300, 511, 0, 42, 42, 256, 99]
MAX_EPOCHS = 300


class Host:
    """Sends the true ids, spiced with wrong ones that it takes back by a new epoch. Believes the newest epoch only."""

    def __init__(self, net: CoreNet, rng: random.Random) -> None:
        self.net = net
        self.rng = rng
        self.epoch = 0
        self.base = 0
        self.known: dict[int, np.ndarray] = {}
        self.seen = 0

    def run(self) -> None:
        while len(self.known) < len(IDS):
            assert self.epoch < MAX_EPOCHS, f"{len(self.known)} rows known after {self.epoch} epochs"
            self.start_epoch()
            self.misbehave()
            self.send_true_rows()
            self.settle(patient=self.rng.random() < 0.6)
        self.settle(patient=True)

    def start_epoch(self) -> None:
        self.epoch += 1
        self.base = min(range(len(IDS) + 1), key=lambda position: position in self.known)

    def misbehave(self) -> None:
        """A run of wrong tokens at the true place, in an epoch of its own; some of it may still be under way later."""
        if self.rng.random() < 0.7:
            wrong = [self.rng.randrange(512) for _ in range(self.rng.randint(1, 3))]
            self.send(self.base, wrong)
            for _ in range(self.rng.randint(0, 60)):
                self.net.step(self.rng)
            self.epoch += 1

    def send_true_rows(self) -> None:
        first = self.base
        while first < len(IDS):
            count = self.rng.randint(1, 3)
            self.send(first, IDS[first : first + count])
            if self.rng.random() < 0.2:
                self.send(first, IDS[first : first + count])  # the same pass twice
            first += count
            for _ in range(self.rng.randint(0, 20)):
                self.net.step(self.rng)

    def send(self, first: int, ids: list[int]) -> None:
        self.net.send(ids_tensor(ids, first=first, epoch=self.epoch, base=self.base, want=Want.ALL))

    def settle(self, *, patient: bool) -> None:
        """Let things happen, all of them or some, and read the answers."""
        for _ in range(10**6 if patient else self.rng.randint(0, 150)):
            if not self.net.step(self.rng):
                break
        answers, self.seen = self.net.answers[self.seen :], len(self.net.answers)
        for answer in answers:
            self.believe(answer)

    def believe(self, answer: Answer) -> None:
        assert answer.vent is None, answer.vent
        (logits,) = answer.tensors
        if logits.epoch == self.epoch:
            for row, values in enumerate(f32(logits)):
                before = self.known.setdefault(logits.first + row, values)
                assert np.array_equal(before, values)


@pytest.mark.parametrize("stations", [TRISPLIT, PER_LAYER], ids=["trisplit", "mixed with shards"])
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 2**32))
def test_logits_and_caches_equal_an_undisturbed_run(
    model: ModelFolder, plain: PlainModel, stations: list[str], seed: int
) -> None:
    net = CoreNet(model, stations)
    net.open()
    host = Host(net, random.Random(seed))
    host.run()
    expected = plain.logits(IDS)
    for position, values in host.known.items():
        assert np.array_equal(values, expected[position])
    undisturbed = CoreNet(model, stations)
    undisturbed.open()
    undisturbed.send(ids_tensor(IDS, want=Want.NONE))
    undisturbed.run()
    for ours, theirs in zip(net.stations, undisturbed.stations, strict=True):
        for layer, cache in theirs.sessions.get(9).caches.items():
            mine = ours.sessions.get(9).caches[layer]
            assert mine.pos_len == cache.pos_len == len(IDS)
            for head in range(2):
                assert np.array_equal(mine.head_keys(head), cache.head_keys(head))
                assert np.array_equal(mine.head_values(head), cache.head_values(head))
    for station in net.stations:
        assert station.queued == 0
        assert len(station.sessions.get(9).joins) == 0, "no half join is left"
        assert station.sessions.join_gauge.num_bytes == 0
