"""The rules of epochs at a station: newer is adopted from any frame, older is dropped, rows append without gaps."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow import Flags, bands
from aeonflow.errors import BadMessageError, CallError, GapError, ProtocolError
from aeonflow.messages import Cancel, InstallRoute, Open, Resume, Route, StationAddress, Where
from aeonflow.tensors import Port, pack_tensors
from stations.core.outgoing import ToLink, ToStation
from stations.core.station import Station
from stations.models.folder import ModelFolder

from .cores import HOST, ROUTE, Answer, ask, carriers_of, make_core, receive, run_queue, tensor

H = 64


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((40, H)).astype(np.float32)


@pytest.fixture
def attn(model: ModelFolder) -> Station:
    """The attn station of a trisplit chain, session 9 open."""
    stations = ["attn:0-2", "gate_up:0-2", "down:0-2", "embed,head"]
    station = make_core(model, stations[0])
    station.link_opened(50, False)
    addresses = tuple(StationAddress(f"s{i}", f"ws://s{i}") for i in range(4))
    ask(station, InstallRoute(Route(ROUTE, 3, addresses, carriers_of(stations, 3)), 0))
    ask(station, Open(9, ROUTE, 64))
    return station


def x(rows: np.ndarray, first: int, count: int = 1, **fields: int):
    return tensor(Port.X, rows[first : first + count], first=first, **fields)


def forwarded(outgoing: list) -> int:
    """How many rows went on: each pass leaves twice, as n and as h."""
    assert all(isinstance(message, ToStation) for message in outgoing), outgoing
    return len(outgoing) // 2


def vent_of(outgoing: list) -> Answer:
    (message,) = outgoing
    assert isinstance(message, ToLink)
    assert message.link == HOST
    return Answer("s", message)


def length(station: Station, layer: int = 0) -> int:
    session = station.sessions.get(9)
    assert session is not None
    return session.length(layer)


def test_rows_append_in_order_and_a_repeated_row_is_dropped(attn: Station, rows: np.ndarray) -> None:
    assert forwarded(receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)) == 1
    assert receive(attn, bands.ATTN, [x(rows, 2)], link=50) == []
    assert attn.counters.events["duplicate_rows"] == 1
    assert length(attn) == 4


def test_a_gap_is_vented_to_the_host_with_the_numbers_and_never_to_the_predecessor(
    attn: Station, rows: np.ndarray
) -> None:
    receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)
    answer = vent_of(receive(attn, bands.ATTN, [x(rows, 6)], link=50))
    assert isinstance(answer.error, GapError)
    assert "gap: have 4, got 6" in str(answer.error)
    vent = answer.vent
    assert vent is not None
    assert (vent.session, vent.epoch, vent.kind, vent.first, vent.layer, vent.station) == (9, 1, 0, 6, 0, "s")
    assert attn.counters.events["gaps"] == 1


def test_a_newer_epoch_cuts_every_layer_to_its_base(attn: Station, rows: np.ndarray) -> None:
    for layer in range(3):
        receive(attn, bands.ATTN, [x(rows, 0, 6, layer=layer)], link=50)
    assert forwarded(receive(attn, bands.ATTN, [x(rows, 4, epoch=2, base=4)], link=50)) == 1
    assert [length(attn, layer) for layer in range(3)] == [5, 4, 4]


def test_rows_computed_again_after_a_rollback_are_those_of_a_first_run(attn: Station, rows: np.ndarray) -> None:
    wrong = rows[::-1].copy()
    receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)
    receive(attn, bands.ATTN, [x(wrong, 4, 3)], link=50)
    again = receive(attn, bands.ATTN, [x(rows, 4, 3, epoch=2, base=4)], link=50)
    ask(attn, Open(10, ROUTE, 64))
    receive(attn, bands.ATTN, [x(rows, 0, 4, session=10)], link=50)
    first = receive(attn, bands.ATTN, [x(rows, 4, 3, session=10)], link=50)
    assert [bytes(m.pieces[1]) for m in again] == [bytes(m.pieces[1]) for m in first]


def test_an_older_epoch_is_dropped_and_counted_whatever_it_holds(attn: Station, rows: np.ndarray) -> None:
    receive(attn, bands.ATTN, [x(rows, 0, 4, epoch=3)], link=50)
    assert receive(attn, bands.ATTN, [x(rows, 4, epoch=2)], link=50) == []
    assert receive(attn, bands.ATTN, [x(rows, 4, epoch=2, layer=77)], link=50) == []
    assert attn.counters.events["stale_frames"] == 2
    assert length(attn) == 4


def test_the_same_epoch_with_another_base_is_a_protocol_error_and_changes_nothing(
    attn: Station, rows: np.ndarray
) -> None:
    receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)
    answer = vent_of(receive(attn, bands.ATTN, [x(rows, 2, base=2)], link=50))
    assert isinstance(answer.error, ProtocolError)
    assert "epoch 1 has base 0, a frame says 2" in str(answer.error)
    assert length(attn) == 4


def test_a_frame_that_is_refused_brings_no_epoch_in(attn: Station, rows: np.ndarray) -> None:
    receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)
    answer = vent_of(receive(attn, bands.ATTN, [x(rows, 1, epoch=2, base=1, layer=77)], link=50))
    assert answer.vent is not None
    assert answer.vent.epoch == 2
    assert length(attn) == 4
    assert forwarded(receive(attn, bands.ATTN, [x(rows, 4)], link=50)) == 1


def test_a_newer_epoch_drops_jobs_that_wait_and_results_that_are_under_way(attn: Station, rows: np.ndarray) -> None:
    receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)
    for first in (4, 5):
        message = x(rows, first)
        attn.receive(50, bands.ATTN, 1, Flags.FIN, b"".join(pack_tensors([message])), 0.0)
    running = attn.next_batch()
    assert running is not None
    attn.compute(running)
    attn.receive(50, bands.ATTN, 1, Flags.FIN, b"".join(pack_tensors([x(rows, 2, epoch=2, base=2)])), 0.0)
    assert attn.queued == 1  # the new epoch's row alone
    assert length(attn) == 5, "rows are not cut under a running batch"
    attn.finish(running, 0.001)
    assert length(attn) == 2
    assert attn.take_outgoing() == []
    run_queue(attn)
    assert forwarded(attn.take_outgoing()) == 1
    events = attn.counters.events
    assert (events["stale_jobs"], events["stale_results"]) == (1, 1)


def test_cancel_cuts_at_once_and_an_older_cancel_is_refused(attn: Station, rows: np.ndarray) -> None:
    receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)
    ask(attn, Cancel(9, 2, 3))
    assert length(attn) == 3
    ask(attn, Cancel(9, 2, 3))
    with pytest.raises(BadMessageError, match="epoch 1 base 0: session 9 is in epoch 2 base 3"):
        ask(attn, Cancel(9, 1, 0))


def test_resume_says_how_many_rows_are_valid(attn: Station, rows: np.ndarray) -> None:
    for layer, count in ((0, 6), (1, 5), (2, 3)):
        receive(attn, bands.ATTN, [x(rows, 0, count, layer=layer)], link=50)
    assert ask(attn, Resume(9, 2, 5, ROUTE)).have == 3
    assert [length(attn, layer) for layer in range(3)] == [5, 5, 3]
    assert ask(attn, Where(9)).epoch == 2


def test_a_station_without_caches_can_resume_anywhere(model: ModelFolder) -> None:
    station = make_core(model, "gate_up:0-2")
    ask(station, Open(9, 0, 64))
    assert ask(station, Resume(9, 4, 33)).have == 33


def test_a_fresh_station_starts_in_whatever_epoch_it_sees_and_reports_what_it_lacks(
    attn: Station, rows: np.ndarray
) -> None:
    answer = vent_of(receive(attn, bands.ATTN, [x(rows, 4, epoch=7, base=4)], link=50))
    assert "gap: have 0, got 4" in str(answer.error)
    assert ask(attn, Where(9)).epoch == 7


def test_a_call_always_gets_an_answer_also_when_it_is_stale_or_repeated(model: ModelFolder, rows: np.ndarray) -> None:
    station = make_core(model, "attn:0-2")
    ask(station, Open(9, 0, 64))
    (reply,) = receive(station, bands.ATTN, [x(rows, 0, 2, route=0, epoch=3)], sequence=11)
    assert [t.port for t in Answer("s", reply).tensors] == [Port.H, Port.N]
    (repeated,) = receive(station, bands.ATTN, [x(rows, 1, route=0, epoch=3)], sequence=12)
    (stale,) = receive(station, bands.ATTN, [x(rows, 2, route=0, epoch=2)], sequence=13)
    assert (reply.sequence, repeated.sequence, stale.sequence) == (11, 12, 13)
    assert isinstance(Answer("s", repeated).error, CallError)
    assert "has 2 rows" in str(Answer("s", repeated).error)
    assert Answer("s", stale).vent.epoch == 3  # never under an older epoch than its own


def test_drafts_never_enter_a_cache_and_are_dropped_without_a_word(attn: Station, rows: np.ndarray) -> None:
    assert receive(attn, bands.ATTN, [x(rows, 0, kind=1)], link=50) == []
    assert receive(attn, bands.ATTN, [x(rows, 0, kind=1, layer=77)], link=50) == []
    assert attn.counters.events["drafts_dropped"] == 2
    assert length(attn) == 0


def test_a_draft_may_bring_the_news_of_an_epoch(attn: Station, rows: np.ndarray) -> None:
    receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)
    assert receive(attn, bands.ATTN, [x(rows, 3, kind=1, epoch=2, base=2)], link=50) == []
    assert length(attn) == 2


@pytest.mark.parametrize(("epoch", "base"), [(2, -1), (-3, 0), (1 << 32, 0), (2, 1 << 40), (2, 65)])
def test_an_epoch_or_base_that_no_frame_can_have_is_refused_and_changes_nothing(
    attn: Station, rows: np.ndarray, epoch: int, base: int
) -> None:
    receive(attn, bands.ATTN, [x(rows, 0, 4)], link=50)
    for request in (Resume(9, epoch, base, ROUTE), Cancel(9, epoch, base)):
        with pytest.raises(BadMessageError, match=f"epoch {epoch} base {base}"):
            ask(attn, request)
    assert length(attn) == 4
    assert forwarded(receive(attn, bands.ATTN, [x(rows, 4)], link=50)) == 1


def test_a_session_does_not_move_to_a_route_for_which_it_reserved_too_little(model: ModelFolder) -> None:
    station = make_core(model, "embed,block:0-0,block:1-2,head")
    addresses = (StationAddress("a", "ws://a"), StationAddress("b", "ws://b"))
    carriers = carriers_of(["embed,block:0-0,head", "block:1-2"], 3)
    ask(station, InstallRoute(Route(ROUTE, 3, addresses, carriers), 0))
    opened = ask(station, Open(9, ROUTE, 64))
    with pytest.raises(BadMessageError, match=rf"reserved {opened.kv_bytes:,} bytes of KV, 3 layers need"):
        ask(station, Resume(9, 2, 0, 0))
    assert ask(station, Resume(9, 2, 0, ROUTE)).have == 0
