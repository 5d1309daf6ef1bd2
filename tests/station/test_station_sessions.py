"""Sessions: budgeted before anything is computed, expired, dropped with their host, counted."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow import Flags, bands
from aeonflow.errors import AeonflowError, BadMessageError, OverloadedError, UnsupportedError
from aeonflow.messages import Cancel, Close, Done, Drain, Open, Opened, Stats, Where, encode
from aeonflow.tensors import Port, pack_tensors
from stations.core.station import Station
from stations.models.folder import ModelFolder

from .cores import HOST, Answer, ask, make_core, receive, run_queue, tensor

H = 64
ROW_BYTES = 2 * 2 * 16 * 4  # K and V, 2 heads of 16 dims, f32


def x(first: int = 0, rows: int = 1, **fields: int):
    array = np.full((rows, H), 0.5, np.float32)
    return tensor(Port.X, array, **{"route": 0, "first": first, **fields})


def stats(station: Station, now: float = 0.0) -> dict:
    return ask(station, Stats(), now=now).values


@pytest.fixture
def station(model: ModelFolder) -> Station:
    return make_core(model, "attn:0-2")


def test_opening_reserves_kv_for_every_position_and_layer_and_closing_gives_it_back(station: Station) -> None:
    assert ask(station, Open(9, 0, 100)) == Opened(9, kv_bytes=100 * 3 * ROW_BYTES)
    assert stats(station)["kv_reserved_bytes"] == 100 * 3 * ROW_BYTES
    assert ask(station, Close(9)) == Done()
    assert stats(station)["kv_reserved_bytes"] == 0


def test_a_session_beyond_the_budget_is_refused_with_the_numbers_before_any_prefill(model: ModelFolder) -> None:
    station = make_core(model, "attn:0-2", kv_budget_bytes=110 * 3 * ROW_BYTES)
    ask(station, Open(9, 0, 100))
    with pytest.raises(OverloadedError, match=r"20 positions needs 15,360 bytes of KV on 3 layers: 7,680 of 84,480"):
        ask(station, Open(10, 0, 20))
    assert ask(station, Open(10, 0, 10)).session == 10


def test_a_station_without_caches_reserves_nothing(model: ModelFolder) -> None:
    station = make_core(model, "gate_up:0-2", kv_budget_bytes=0)
    assert ask(station, Open(9, 0, 100)).kv_bytes == 0


REFUSED = {
    "more positions than the context": (Open(9, 0, 129), "129 positions: 1 to 128", BadMessageError),
    "no position": (Open(9, 0, 0), "0 positions", BadMessageError),
    "an idle time of nothing": (Open(9, 0, 8, idle_s=0.0), "idle_s 0.0", BadMessageError),
    "an idle time that is no number": (Open(9, 0, 8, idle_s=float("nan")), "idle_s nan", BadMessageError),
    "a KV mode that is unknown": (Open(9, 0, 8, {"kv": "q3"}), "kv='q3': supported are f32", UnsupportedError),
    "an unknown KV option": (Open(9, 0, 8, {"warp": 1}), "option 'warp'", UnsupportedError),
    "a KV option of no sense": (Open(9, 0, 8, {"kv": ["f32"]}), "Expected `str`, got `array`", UnsupportedError),
}


@pytest.mark.parametrize(("request_", "reason", "kind"), REFUSED.values(), ids=REFUSED.keys())
def test_opening_is_refused_for(station: Station, request_: Open, reason: str, kind: type[AeonflowError]) -> None:
    with pytest.raises(kind, match=reason):
        ask(station, request_)
    assert len(station.sessions) == 0


def test_a_session_is_opened_once(station: Station) -> None:
    ask(station, Open(9, 0, 8, {"kv": "f32"}))
    with pytest.raises(BadMessageError, match="session 9 is open already"):
        ask(station, Open(9, 0, 8))


def test_the_number_of_sessions_is_bounded(model: ModelFolder) -> None:
    station = make_core(model, "attn:0-2", max_sessions=2)
    ask(station, Open(1, 0, 8))
    ask(station, Open(2, 0, 8))
    with pytest.raises(OverloadedError, match="2 sessions are open: at most 2"):
        ask(station, Open(3, 0, 8))


def test_an_idle_session_expires_and_one_in_use_does_not(station: Station) -> None:
    ask(station, Open(1, 0, 8, idle_s=10.0), now=0.0)
    ask(station, Open(2, 0, 8, idle_s=10.0), now=0.0)
    receive(station, bands.ATTN, [x(session=2)], now=8.0)
    station.tick(10.5)
    assert [session.id for session in station.sessions] == [2]
    station.tick(18.5)
    assert len(station.sessions) == 0
    assert stats(station)["sessions_expired"] == 2


def test_the_sessions_and_routes_of_a_host_that_is_gone_are_dropped_those_of_others_stay(station: Station) -> None:
    station.link_opened(2, True)
    ask(station, Open(1, 0, 8))
    ask(station, Open(2, 0, 8), link=2)
    station.link_closed(HOST)
    assert [session.id for session in station.sessions] == [2]
    assert station.counters.events["sessions_orphaned"] == 1


def test_a_closed_session_drops_what_waits_and_what_is_under_way(station: Station) -> None:
    ask(station, Open(9, 0, 100))
    for first in (0, 1, 2):
        station.receive(HOST, bands.ATTN, first, Flags.FIN, b"".join(pack_tensors([x(first)])), 0.0)
    batch = station.next_batch()
    assert batch is not None
    station.compute(batch)
    station.receive(HOST, bands.CONTROL, 9, Flags.FIN, encode(Close(9)), 0.0)
    station.finish(batch, 0.001)
    run_queue(station)
    answers = station.take_outgoing()
    assert sorted(answer.sequence for answer in answers) == [0, 1, 2, 9], "each call has its one answer"
    assert station.counters.events["closed_drops"] == 3
    assert station.queued == 0
    assert not ask(station, Where(9)).known


def test_closing_twice_is_no_error_cancelling_an_unknown_session_is(station: Station) -> None:
    ask(station, Open(9, 0, 8))
    assert ask(station, Close(9)) == ask(station, Close(9)) == Done()
    with pytest.raises(AeonflowError, match="session 9 is not open here"):
        ask(station, Cancel(9, 1, 0))


def test_a_vent_of_the_caller_cancels_the_call_that_waits(station: Station) -> None:
    ask(station, Open(9, 0, 100))
    for sequence in (20, 21):
        one = x(0, session=9) if sequence == 20 else x(1)
        station.receive(HOST, bands.ATTN, sequence, Flags.FIN, b"".join(pack_tensors([one])), 0.0)
    station.receive(HOST, bands.ATTN, 21, Flags.VENT | Flags.FIN, b"", 0.0)
    run_queue(station)
    assert [message.sequence for message in station.take_outgoing()] == [20]
    assert station.counters.events["cancels"] == 1


def test_a_draining_station_opens_nothing_new_and_finishes_what_is_open(station: Station) -> None:
    ask(station, Open(9, 0, 100))
    assert ask(station, Drain()) == Done()
    with pytest.raises(OverloadedError, match="draining"):
        ask(station, Open(10, 0, 8))
    (reply,) = receive(station, bands.ATTN, [x()])
    assert Answer("s", reply).vent is None


def test_stats_count_jobs_rows_bytes_and_what_the_shell_adds(station: Station) -> None:
    station.use_gauges(lambda: {"rss_bytes": 5})
    ask(station, Open(9, 0, 100))
    receive(station, bands.ATTN, [x(0, 3)])
    receive(station, bands.ATTN, [x(3)])
    reply = ask(station, Stats(), now=12.5)
    values = reply.values
    assert (reply.name, reply.pid, reply.uptime_s) == ("s", 1, 12.5)
    assert (values["jobs"], values["batches"], values["answers"], values["sessions"]) == (2, 2, 2, 1)
    assert values["rows"] == {"attn": 4}
    assert values["kv_bytes"] == 4 * ROW_BYTES
    assert values["seeds_sent"] == values["seeds_received"] == 0
    assert values["rss_bytes"] == 5
