"""One small model cut in three ways, what a plain run of it gives, and the checks after a generation with drafts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from stations.core.scratch import DRAFT_WINDOW, SCRATCH_ROWS
from stations.kernels import Backend, make_backend
from stations.models.folder import ModelFolder
from stations.models.roles import parse_roles
from tests.station.cores import CoreNet, ids_tensor

from .drafting import MAX_RUN, SESSION, DraftHost, DraftNet, rows_of

LAYERS = 5
NUM_PROMPT, NUM_TOKENS = 4, 22
TRISPLIT = [f"attn:0-{LAYERS - 1}", f"gate_up:0-{LAYERS - 1}", f"down:0-{LAYERS - 1}", "embed,head"]
PER_LAYER = [
    *(f"{role}:{layer}" for layer in range(LAYERS) for role in ("attn", "gate_up", "down")), "embed", "head",
]  # fmt: skip
TOGETHER = [f"attn:0-{LAYERS - 1},gate_up:0-{LAYERS - 1}", f"down:0-{LAYERS - 1},embed,head"]
SHAPES = {"trisplit": TRISPLIT, "per layer": PER_LAYER, "roles together": TOGETHER}
ABOVE_1 = tuple(range(2, LAYERS))


class Case:
    """A model, the backends of every shape, and what a plain run gives."""

    def __init__(self, model: ModelFolder) -> None:
        self.model = model
        self._rng = random.Random(2)
        self.backends: dict[str, dict[int, Backend]] = {
            name: {i: make_backend("fast", model, parse_roles(roles, LAYERS)) for i, roles in enumerate(stations)}
            for name, stations in SHAPES.items()
        }
        self.solo = make_backend("fast", model, parse_roles(f"embed,block:0-{LAYERS - 1},head", LAYERS))
        rng = random.Random(7)
        self.tokens = [rng.randrange(512) for _ in range(NUM_PROMPT)]
        self.logits: list[np.ndarray] = []
        net = CoreNet(model, [f"embed,block:0-{LAYERS - 1},head"], {0: self.solo})
        net.open()
        first = 0
        while len(self.tokens) < NUM_TOKENS:
            net.send(ids_tensor(self.tokens[first:], first=first))
            first = len(self.tokens)
            (answer,) = net.run()
            self.logits.append(np.frombuffer(answer.tensors[0].data, np.float32))
            self.tokens.append(int(self.logits[-1].argmax()))
        self.rows = rows_of(net.stations[0].sessions.get(SESSION).caches, NUM_TOKENS - 1)

    def net(self, shape: str, **options: Any) -> DraftNet:
        """A fresh net with an open session."""
        net = DraftNet(self.model, SHAPES[shape], self.backends[shape], **{"seeded": ABOVE_1, **options})
        net.open()
        return net

    def rng(self) -> random.Random:
        """Chance that is the same in every run."""
        return self._rng

    def check(self, net: DraftNet, host: DraftHost) -> None:
        """I1, I2 and what is bounded, once the generation is over and everything under way has arrived."""
        assert host.tokens == self.tokens
        for found, expected in zip(host.rows, self.logits, strict=True):
            assert np.array_equal(found, expected)
        net.frozen.clear()
        while net.step(host.rng):
            pass
        caches = {layer: cache for s in net.stations for layer, cache in s.sessions.get(SESSION).caches.items()}
        assert rows_of(caches, NUM_TOKENS - 1) == self.rows
        assert host.max_lead <= DRAFT_WINDOW + MAX_RUN
        assert host.max_in_flight <= DRAFT_WINDOW + 1
        assert net.max_scratch <= SCRATCH_ROWS
        assert net.max_slots <= 2 * (DRAFT_WINDOW + 2)
        assert net.max_frames <= 3 * (DRAFT_WINDOW + 2)
        for station in net.stations:
            session = station.sessions.get(SESSION)
            assert session.queued == session.queued_drafts == 0
        check_seeds(net)


def check_seeds(net: DraftNet) -> None:
    """I10: every seed that was sent came, or the net lost it; every one that came ended in one way."""
    events = [station.counters.events for station in net.stations]
    assert sum(e["seeds_sent"] for e in events) == sum(e["seeds_received"] for e in events) + net.dropped_seeds
    for station, counted in zip(net.stations, events, strict=True):
        roles = {span.role for span in station.spans}
        if len(roles) == 1:
            parts = 2 if roles == {"gate_up"} else 1  # of a slot
            used = parts * counted["seeds_completed"] + len(station.sessions.get(SESSION).seeds)
            ended = counted["seeds_dropped"] + counted["drafts_stale"] + counted["drafts_unfinished"]
            assert counted["seeds_received"] == used + ended, roles
        assert counted["seeds_dropped"] == counted["vents"] == 0
