"""A net of cores that checks the invariants of drafts at every event, and a small host that speculates with them.

The host follows the protocol's own text (`docs/protocol.md`, *Drafts*): known tokens, guesses, epochs, one live draft,
a window; now and then it verifies a run of several guesses, as lookup does. What a draft's head says is believed with a
chance of its own, so that hits and misses both happen.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgspec
import numpy as np

from aeonflow import Flags, bands
from aeonflow.tensors import GROW, Kind, Tensor, Want, unpack_tensors
from stations.core.scratch import DRAFT_WINDOW
from stations.kernels.base import Backend
from stations.models.folder import ModelFolder
from tests.station.cores import Answer, CoreNet, f32, ids_tensor

SESSION = 9
MAX_RUN = 3  # guesses of a run that is verified in one pass
VOCAB = 512


class DraftNet(CoreNet):
    """`drop`: the share of draft messages that get lost. `slow`: canonical frames wait where anything else can happen,
    with that chance. `frozen` holds edges back altogether."""

    def __init__(
        self, model: ModelFolder, stations: list[str], backends: dict[int, Backend], *, drop: float = 0.0,
        slow: float = 0.0, chance: int = 0, **route: Any,
    ) -> None:  # fmt: skip
        super().__init__(model, stations, backends, **{"pair_x": "draft", **route})
        self.fork = min(self.route.seeded, default=0) - 1
        self.to_host: deque[Answer] = deque()
        self.frozen: set[tuple[int, int]] = set()
        self.sent: dict[tuple[Any, ...], int] = {}
        self.log: list[tuple[int, int, int, bytes]] = []  # every message, in the order of sending
        self.max_frames = self.max_scratch = self.max_slots = self.dropped_seeds = 0
        self._drop = drop
        self._slow = slow
        self._chance = random.Random(chance)
        self._owner: dict[tuple[int, int, int], int] = {}  # (station, layer, position) → epoch that wrote the row
        self._epochs: dict[tuple[int, int], tuple[int, int]] = {}  # (station, layer) → epoch, rows
        self._before: dict[int, list[bytes]] = {}

    def put(self, source: int, target: int, stream: int, payload: bytes, flags: Flags, sequence: int = 1) -> None:
        self.log.append((source, target, stream, payload))
        for tensor in unpack_tensors(payload):
            if source >= 0:  # I5
                key = (source, target, stream, tensor.session, tensor.epoch, tensor.kind, tensor.first, tensor.layer,
                       tensor.port, tensor.part)  # fmt: skip
                self.sent[key] = self.sent.get(key, 0) + 1
                assert self.sent[key] == 1, key
        if tensor.kind == Kind.DRAFT and self._chance.random() < self._drop:
            self.dropped_seeds += bands.is_seed(stream)
            return
        super().put(source, target, stream, payload, flags, sequence)

    def step(self, rng: random.Random) -> bool:
        """As in `CoreNet`, with frozen edges, slow canonical frames, and the invariants of caches looked after."""
        events: list[tuple[str, Any]] = [
            ("deliver", edge) for edge, queue in self.edges.items() if queue and edge not in self.frozen
        ]
        events += [("finish", index) for index in self.running]
        events += [("take", i) for i, s in enumerate(self.stations) if s.queued and i not in self.running]
        if not events:
            return False
        if rng.random() < self._slow:
            events = [one for one in events if not self._is_canonical(one)] or events
        what, where = rng.choice(events)
        if what == "take":
            self._take(where)
        elif what == "finish":
            self._finish(where)
        else:
            only = self.edges
            self.edges = {where: only[where]}
            try:
                CoreNet.step(self, _First())
            finally:
                only.update(self.edges)
                self.edges = only
        while self.answers:
            self.to_host.append(self.answers.pop(0))
        self._check()
        return True

    def _is_canonical(self, event: tuple[str, Any]) -> bool:
        what, where = event
        return what == "deliver" and unpack_tensors(self.edges[where][0][2])[0].kind == Kind.CANONICAL

    def _take(self, index: int) -> None:
        station = self.stations[index]
        batch = station.next_batch()
        if batch is not None:
            job, stage = batch.jobs[0], batch.stage
            is_draft = job.head.kind == Kind.DRAFT
            before = self._rows(index) if is_draft else []
            if stage.role == "attn" and is_draft:
                self._check_read(index, stage.layer, job)
            station.compute(batch)
            assert batch.error is None, batch.error
            self.running[index] = batch
            if stage.role == "attn" and not is_draft:
                for row in range(job.head.first, job.head.first + job.head.rows):
                    self._owner[index, stage.layer, row] = job.head.epoch
            if is_draft:
                assert self._rows(index) == before  # I3
        self.collect(index)

    def _finish(self, index: int) -> None:
        batch = self.running.pop(index)
        is_draft = batch.jobs[0].head.kind == Kind.DRAFT
        before = self._rows(index) if is_draft and not batch.jobs[0].session.pending_cut else None
        self.stations[index].finish(batch, 0.001)
        assert before is None or self._rows(index) == before  # I3
        self.collect(index)

    def _check_read(self, index: int, layer: int, job: Any) -> None:
        """I8: of the canonical rows that a draft reads, none is void."""
        session = job.session
        for row in range(session.base, min(session.length(layer), job.head.first)):
            assert self._owner[index, layer, row] == session.epoch, (index, layer, row)

    def _rows(self, index: int) -> list[bytes]:
        session = self.stations[index].sessions.get(SESSION)
        return rows_of(session.caches) if session is not None else []

    def _check(self) -> None:
        """I4, and the gauges of I7."""
        for index, station in enumerate(self.stations):
            session = station.sessions.get(SESSION)
            if session is None:
                continue
            self.max_scratch = max(self.max_scratch, len(session.scratch))
            self.max_slots = max(self.max_slots, len(session.seeds) + len(session.joins))
            if session.pending_cut is not None:
                continue
            for layer, cache in session.caches.items():
                epoch, rows = self._epochs.get((index, layer), (session.epoch, cache.pos_len))
                if cache.pos_len < rows:
                    assert session.epoch > epoch
                    assert cache.pos_len <= session.base
                if session.epoch > epoch:
                    assert cache.pos_len >= min(rows, session.base)
                self._epochs[index, layer] = session.epoch, cache.pos_len
        newest = max((unpack_tensors(m[2])[0].epoch for queue in self.edges.values() for m in queue), default=0)
        live = [m for queue in self.edges.values() for m in queue if unpack_tensors(m[2])[0].epoch == newest]
        self.max_frames = max(self.max_frames, len(live))


class _First(random.Random):
    """The first thing on offer."""

    def choice(self, offered: Any) -> Any:
        return offered[0]


def rows_of(caches: dict[int, Any], upto: int | None = None) -> list[bytes]:
    """Bytes of K and V of the rows below `upto`, layer by layer."""
    found = []
    for layer in sorted(caches):
        cache = caches[layer]
        for head in range(cache.num_kv_heads):
            found += [cache.head_keys(head)[:upto].tobytes(), cache.head_values(head)[:upto].tobytes()]
    return found


class DraftHost:
    """One generation. `truth` are all tokens and `logits` the rows of a plain run."""

    def __init__(
        self, net: DraftNet, truth: list[int], num_prompt: int, rng: random.Random, *, alpha: float | None = None,
        runs: bool = False, grow: bool = True,
    ) -> None:  # fmt: skip
        """`alpha`: the chance that a guess is the true token, a random one otherwise; None: what the draft says."""
        self.net = net
        self.truth = truth
        self.rng = rng
        self.tokens = truth[:num_prompt]
        self.rows: list[np.ndarray] = []  # logits that tokens were chosen from
        self.is_over = False
        self.hits = self.misses = self.held_drafts = self.drafts = self.errors = self.max_lead = 0
        self.max_in_flight = 0
        self._alpha = alpha
        self._runs = runs
        self._grow = grow
        self._epoch = self._base = 0
        self._began_at = -1
        self._guesses: dict[int, int] = {}
        self._sent_to = -1  # last position with a canonical pass of this epoch
        self._live: int | None = None  # position of the live draft
        self._held: int | None = None
        self._in_flight: dict[int, int] = {}  # first → rows

    @property
    def known(self) -> int:
        return len(self.tokens) - 1

    @property
    def lead(self) -> int:
        """Positions sent beyond the last known one."""
        return self._sent_to - self.known

    def run(self, max_events: int = 100_000) -> None:
        self.begin()
        for _ in range(max_events):
            if self.is_over:
                return
            if not self.step():
                raise AssertionError(f"stuck at {len(self.tokens)} tokens: in flight {self._in_flight}")
        raise AssertionError(f"not over after {max_events} events")

    def begin(self) -> None:
        """The prompt but its last token, then a first pass."""
        self._epoch, self._base = 1, 0
        if self.known:
            self._send(0, self.tokens[:-1], Want.NONE, grow=False)
        self._start(self.known)

    def step(self) -> bool:
        """One event of the net, or an answer read. False when nothing can happen."""
        if self.net.to_host and (self.rng.random() < 0.3 or not self.net.step(self.rng)):
            self._receive(self.net.to_host.popleft())
            return True
        return self.net.step(self.rng) or bool(self.net.to_host)

    def _receive(self, answer: Answer) -> None:
        if answer.vent is not None:
            if answer.vent.epoch == self._epoch:
                self.errors += 1
                assert self.errors < 4, answer.vent
                self._restart(is_error=True)
            return
        tensors = answer.tensors
        head = tensors[0]
        if head.epoch != self._epoch or (
            head.port == 9 and head.kind == Kind.CANONICAL
        ):  # the prompt's acknowledgement
            return
        if head.kind == Kind.DRAFT:
            self._drafted(tensors)
        else:
            self._verified(head)

    def _drafted(self, tensors: list[Tensor]) -> None:
        position = tensors[0].first
        if position != self._live or position != self._sent_to:
            return
        self.drafts += 1
        self._live = None
        if self._alpha is None:
            guess = int(np.frombuffer(tensors[0].data, np.uint32)[0])
        else:
            is_true = self.rng.random() < self._alpha and position + 1 < len(self.truth)
            guess = self.truth[position + 1] if is_true else self.rng.randrange(VOCAB)
        if self._sent_to - self.known >= DRAFT_WINDOW:
            self.held_drafts += 1
            self._held = guess
        else:
            self._guesses[position + 1] = guess
            self._start(position + 1)

    def _verified(self, head: Tensor) -> None:
        logits = f32(head)
        last = head.first + len(logits) - 1
        first = last + 1 - self._in_flight.pop(last, 0)
        assert first == self.known, "answers of an epoch come in order on ordered links"
        for row in logits:
            self.rows.append(row.copy())
            self.tokens.append(int(row.argmax()))
            if len(self.tokens) == len(self.truth):
                self.is_over = True
                return
            if self.known not in self._guesses:
                self._restart() if self._live is not None or self._sent_to >= self.known else self._start(self.known)
                return
            if self._guesses[self.known] != self.tokens[-1]:
                self.misses += 1
                self._restart()
                return
            self.hits += 1
        if self._held is not None and self._sent_to - self.known < DRAFT_WINDOW:
            self._guesses[self._sent_to + 1], self._held = self._held, None
            self._start(self._sent_to + 1)

    def _restart(self, *, is_error: bool = False) -> None:
        assert is_error or self.known > self._began_at  # I9
        self._began_at = self.known
        self._epoch += 1
        self._base = self.known
        self._guesses.clear()
        self._in_flight.clear()
        self._live = self._held = None
        self._start(self.known)

    def _start(self, position: int) -> None:
        token = self.tokens[position] if position <= self.known else self._guesses[position]
        count = self.rng.choice((0, 0, 1, MAX_RUN)) if self._runs else 0
        count = min(count, len(self.truth) - 1 - position)
        run = [
            self.truth[position + 1 + i] if self.rng.random() < 0.8 else self.rng.randrange(VOCAB) for i in range(count)
        ]
        self._guesses.update({position + 1 + i: guess for i, guess in enumerate(run)})
        grow = self._grow and not count
        if grow:
            assert self._live is None  # I7: one live draft
            self._live = position
        self._sent_to = position + count
        self.max_lead = max(self.max_lead, self._sent_to - self.known)
        self._in_flight[self._sent_to] = 1 + count
        self.max_in_flight = max(self.max_in_flight, len(self._in_flight))
        self._send(position, [token, *run], Want.ALL, grow=grow)

    def _send(self, first: int, ids: list[int], want: Want, *, grow: bool) -> None:
        self.net.send(a_pass(ids, first, epoch=self._epoch, base=self._base, want=want, grow=grow))


def a_pass(ids: list[int], first: int, *, grow: bool = False, want: Want = Want.ALL, **fields: Any) -> Tensor:
    """Rows of a pass, from which a draft grows or not."""
    sent = ids_tensor(ids, first=first, want=want, **fields)
    return msgspec.structs.replace(sent, options=sent.options | GROW) if grow else sent
