"""Draft seeds that are lost, doubled, damaged, wrong or too many: counted, and nothing of the session changes."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from aeonflow import Flags, bands
from aeonflow.tensors import Kind, Port, Tensor, pack_tensors
from stations.core.drafts import MAX_QUEUED_DRAFTS
from stations.core.station import Station
from stations.kv.eviction import Born
from stations.kv.layer_cache import LayerKvCache
from stations.kv.ring import RingRope, RingWeights
from tests.station.cores import HOST, run_queue, tensor

from .cases import NUM_PROMPT, Case
from .drafting import SESSION, DraftHost, DraftNet, a_pass, rows_of

ATTN, GATE_UP, DOWN = 0, 1, 2  # stations of trisplit
LINE_145, LINE_246, LINE_347 = (bands.seed_stream(line, 0) for line in (1, 3, 5))


@pytest.fixture
def net(case: Case) -> DraftNet:
    """The prompt has gone through."""
    net = case.net("trisplit")
    net.send(a_pass(case.tokens[:NUM_PROMPT], 0))
    while net.step(case.rng()):
        pass
    net.to_host.clear()
    return net


def a_seed(first: int, layer: int, value: float = 0.25, **fields) -> Tensor:
    return tensor(Port.SEED, np.full((1, 64), value, np.float32), first=first, layer=layer, kind=Kind.DRAFT, **fields)


def give(station: Station, stream: int, one: Tensor | bytes, sequence: int | None = None) -> list[object]:
    """A seed from another station, and what follows from it."""
    payload = one if isinstance(one, bytes) else b"".join(pack_tensors([one]))
    at = one.first if isinstance(one, Tensor) else 0
    station.receive(103, stream, at if sequence is None else sequence, Flags.FIN, payload, 0.0)
    run_queue(station)
    return station.take_outgoing()


def end_well(case: Case, net: DraftNet) -> None:
    """The next generation of the session is right."""
    truth = case.tokens[: NUM_PROMPT + 4]
    host = DraftHost(net, truth, NUM_PROMPT, random.Random(1), alpha=0.8)
    host._epoch, host._base = 7, NUM_PROMPT - 1
    host._start(NUM_PROMPT - 1)
    while not host.is_over:
        assert host.step()
    assert host.tokens == truth


@pytest.mark.parametrize(
    ("stream", "fields", "event"),
    [
        (LINE_145, {"layer": 1}, "seeds_unknown"),  # below the fork
        (LINE_145, {"layer": 77}, "seeds_unknown"),
        (bands.seed_stream(4, 0), {"layer": 2}, "seeds_unknown"),
        (bands.seed_stream(1, 1), {"layer": 2}, "seeds_wrong_sign"),
        (LINE_145, {"layer": 2, "session": 5}, "seeds_unknown"),
        (LINE_145, {"layer": 2, "route": 99}, "seeds_unknown"),
        (LINE_145, {"layer": 2, "base": 1}, "seeds_corrupt"),
        (LINE_145, {"layer": 2, "kind": Kind.SHADOW}, "seeds_unknown"),
        (LINE_145, {"layer": 2, "first": 1000}, "seeds_corrupt"),
        (LINE_145, {"layer": 2, "epoch": 0}, "drafts_stale"),
    ],
)
def test_seeds_of_no_use_are_counted_and_nothing_else(case: Case, net: DraftNet, stream, fields, event) -> None:
    station = net.stations[ATTN]
    before = rows_of(station.sessions.get(SESSION).caches)
    assert give(station, stream, msgspec.structs.replace(a_seed(NUM_PROMPT, 2), **fields)) == []
    assert station.counters.events[event] == 1
    assert rows_of(station.sessions.get(SESSION).caches) == before
    end_well(case, net)


def test_damaged_seeds_and_other_sequences_are_counted(case: Case, net: DraftNet) -> None:
    station, whole = net.stations[ATTN], b"".join(pack_tensors([a_seed(NUM_PROMPT, 2)]))
    for payload in (whole[:-1], b"", whole[:40], bytes(48)):
        assert give(station, LINE_145, payload) == []
    assert give(station, LINE_145, a_seed(NUM_PROMPT, 2), sequence=3) == []
    assert station.counters.events["seeds_corrupt"] == 5
    end_well(case, net)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_draft_that_is_not_finite_ends_alone(case: Case, net: DraftNet, value: float) -> None:
    assert give(net.stations[ATTN], LINE_145, a_seed(NUM_PROMPT, 2, value)) == []
    attention = tensor(Port.A, np.full((1, 64), value, np.float32), first=NUM_PROMPT, layer=2, kind=Kind.DRAFT)
    below = tensor(Port.X, np.ones((1, 64), np.float32), first=NUM_PROMPT, layer=2, kind=Kind.DRAFT)
    assert give(net.stations[GATE_UP], LINE_246, attention) == give(net.stations[GATE_UP], LINE_347, below) == []
    for index in (ATTN, GATE_UP):
        events = net.stations[index].counters.events
        assert (events["poisoned"], events["drafts_dropped"], events["vents"]) == (1, 1, 0)
        assert not net.stations[index].sessions.get(SESSION).is_poisoned
    assert net.stations[ATTN].sessions.get(SESSION).scratch.holds(2, NUM_PROMPT) is False
    end_well(case, net)


def test_a_seed_that_comes_twice_starts_one_draft_and_another_content_is_a_conflict(case: Case, net: DraftNet) -> None:
    station = net.stations[ATTN]
    assert len(give(station, LINE_145, a_seed(NUM_PROMPT, 2))) == 1
    assert give(station, LINE_145, a_seed(NUM_PROMPT, 2)) == []
    assert give(station, LINE_145, a_seed(NUM_PROMPT, 2, 0.5)) == []
    assert give(station, LINE_145, a_seed(NUM_PROMPT - 1, 2)) == []
    events = station.counters.events
    assert (events["seeds_duplicate"], events["seeds_conflict"], events["seeds_late"]) == (1, 1, 1)
    assert not station.sessions.get(SESSION).is_poisoned
    end_well(case, net)


def test_drafts_of_positions_that_nothing_leads_to_are_dropped(case: Case, net: DraftNet) -> None:
    station = net.stations[ATTN]
    assert give(station, LINE_145, a_seed(NUM_PROMPT + 1, 2)) == []
    assert give(station, LINE_145, a_seed(NUM_PROMPT + 40, 3)) == []
    assert station.counters.events["drafts_starved"] == 2
    end_well(case, net)


def ring_like(cache: LayerKvCache, num_rows: int) -> LayerKvCache:
    """A bounded layer of the same shape at position `num_rows`."""
    heads, dim = cache.num_kv_heads, cache.head_dim
    ring = LayerKvCache(heads, dim)
    ring.install_bounded(8)
    weights, rope = RingWeights(*np.ones((2, heads, 1, dim), np.float32)), RingRope(np.ones(dim // 2))
    row = np.ones(heads * dim, np.float32)
    for _ in range(num_rows):
        ring.bounded_step(row, row, row, weights, rope, 1.0, heads, np.zeros(heads * dim, np.float32))
    return ring


def test_a_cache_whose_rows_below_the_draft_are_gone_drops_it(case: Case, net: DraftNet) -> None:
    station = net.stations[ATTN]
    caches = station.sessions.get(SESSION).caches
    caches[2].evict(2, Born())
    assert give(station, LINE_145, a_seed(NUM_PROMPT - 1, 2)) == []
    assert station.counters.events["drafts_unreadable"] == 1
    caches[3] = ring_like(caches[3], NUM_PROMPT)
    assert give(station, LINE_145, a_seed(NUM_PROMPT, 3)) == []
    assert station.counters.events["drafts_unreadable"] == 2
    assert not station.queue.length


def test_more_drafts_than_a_station_can_queue_are_dropped(case: Case, net: DraftNet) -> None:
    station = net.stations[ATTN]
    for first in range(NUM_PROMPT, NUM_PROMPT + MAX_QUEUED_DRAFTS + 4):
        payload = b"".join(pack_tensors([a_seed(first, 2)]))
        station.receive(103, LINE_145, first, Flags.FIN, payload, 0.0)
    session = station.sessions.get(SESSION)
    assert session.queued_drafts == MAX_QUEUED_DRAFTS
    assert station.counters.events["drafts_over_limit"] == 4
    run_queue(station)
    station.take_outgoing()
    assert session.queued_drafts == 0
    assert len(session.scratch) <= 4
    end_well(case, net)


def test_a_canonical_job_goes_before_drafts_that_came_earlier(case: Case, net: DraftNet) -> None:
    station = net.stations[GATE_UP]
    for port, stream in ((Port.A, LINE_246), (Port.X, LINE_347)):
        seed = tensor(port, np.ones((1, 64), np.float32), first=NUM_PROMPT, layer=2, kind=Kind.DRAFT)
        station.receive(103, stream, NUM_PROMPT, Flags.FIN, b"".join(pack_tensors([seed])), 0.0)
    n = tensor(Port.N, np.ones((1, 64), np.float32), first=NUM_PROMPT, layer=0)
    station.receive(103, bands.GATE_UP, 1, Flags.FIN, b"".join(pack_tensors([n])), 0.0)
    kinds = []
    while (batch := station.next_batch()) is not None:
        kinds.append(batch.jobs[0].head.kind)
        station.compute(batch)
        station.finish(batch, 0.001)
    assert kinds == [Kind.CANONICAL, Kind.DRAFT]


def test_h_goes_to_the_next_attention_before_gate_up_computes(net: DraftNet) -> None:
    station = net.stations[GATE_UP]
    for port, stream in ((Port.X, LINE_347), (Port.A, LINE_246)):
        seed = tensor(port, np.ones((1, 64), np.float32), first=NUM_PROMPT, layer=2, kind=Kind.DRAFT)
        station.receive(103, stream, NUM_PROMPT, Flags.FIN, b"".join(pack_tensors([seed])), 0.0)
    (early,) = station.take_outgoing()
    assert (early.stream, early.url, early.sequence) == (LINE_145, "ws://s0", NUM_PROMPT)
    assert station.queue.length == 1
    run_queue(station)
    (both,) = station.take_outgoing()
    assert (both.stream, both.url, len(both.pieces)) == (bands.DOWN, "ws://s2", 4)


def test_a_session_that_closes_with_a_draft_under_way_leaves_nothing(net: DraftNet) -> None:
    station = net.stations[GATE_UP]
    seed = tensor(Port.X, np.ones((1, 64), np.float32), first=NUM_PROMPT, layer=2, kind=Kind.DRAFT)
    station.receive(103, LINE_347, NUM_PROMPT, Flags.FIN, b"".join(pack_tensors([seed])), 0.0)
    assert station.sessions.join_gauge.num_bytes == 256
    station.link_closed(HOST)
    assert station.sessions.join_gauge.num_bytes == station.queue.num_bytes == 0
