"""Inputs that arrive apart meet, in any order, once; duplicates leave nothing behind."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow import Flags, bands
from aeonflow.errors import BadTensorError, OverloadedError, PoisonedError
from aeonflow.messages import InstallRoute, Open, Route, StationAddress, Where
from aeonflow.tensors import Port, Tensor
from stations.core.joins import JoinGauge, Joins, Part, sum_parts
from stations.core.outgoing import ToLink, ToStation
from stations.core.station import Station
from stations.models.folder import ModelFolder

from .cores import ROUTE, Answer, ask, carriers_of, make_core, receive, tensor

H, F = 64, 128
STATIONS = ["attn:0-2", "gate_up:0-2", "down:0-2", "embed,head"]
RNG = np.random.default_rng(1)
HS = RNG.standard_normal((20, H)).astype(np.float32)
US = RNG.standard_normal((20, F)).astype(np.float32)


def down_core(model: ModelFolder, **limits: int) -> Station:
    station = make_core(model, "down:0-2", **limits)
    station.link_opened(50, False)
    addresses = tuple(StationAddress(f"s{i}", f"ws://s{i}") for i in range(4))
    ask(station, InstallRoute(Route(ROUTE, 3, addresses, carriers_of(STATIONS, 3)), 2))
    ask(station, Open(9, ROUTE, 64))
    return station


def part(port: Port, first: int, rows: int = 1, **fields: int) -> Tensor:
    source = HS if port is Port.H else US
    return tensor(port, source[first : first + rows], first=first, **fields)


def give(station: Station, one: Tensor) -> list:
    return receive(station, bands.DOWN, [one], link=50)


@pytest.mark.parametrize("order", [(Port.H, Port.U), (Port.U, Port.H)])
def test_h_and_u_meet_in_either_order_and_the_longer_way_counts(model: ModelFolder, order: tuple[Port, Port]) -> None:
    station = down_core(model)
    hops = {Port.H: 4, Port.U: 5}
    assert give(station, part(order[0], 0, hop=hops[order[0]])) == []
    (sent,) = give(station, part(order[1], 0, hop=hops[order[1]]))
    assert isinstance(sent, ToStation)
    assert (sent.url, sent.stream) == ("ws://s0", bands.ATTN)
    assert Answer("s", ToLink(0, 0, 0, sent.pieces)).tensors[0].hop == 6


def test_both_inputs_in_one_message_need_no_join(model: ModelFolder) -> None:
    station = down_core(model)
    apart = give(station, part(Port.H, 0)) + give(station, part(Port.U, 0))
    (together,) = receive(station, bands.DOWN, [part(Port.H, 1), part(Port.U, 1)], link=50)
    assert len(apart) == 1
    assert isinstance(together, ToStation)


def test_a_part_that_comes_twice_is_ignored_before_and_after_the_join_completes(model: ModelFolder) -> None:
    station = down_core(model)
    give(station, part(Port.H, 0))
    assert give(station, part(Port.H, 0)) == []
    assert len(give(station, part(Port.U, 0))) == 1
    assert give(station, part(Port.U, 0)) == []
    assert give(station, part(Port.H, 0)) == []
    assert station.counters.events["duplicate_parts"] == 3
    assert ask(station, Where(9)).queued == 0, "a late duplicate must not leave half a join behind"


def test_two_different_parts_under_one_key_poison_the_session_until_the_next_epoch(model: ModelFolder) -> None:
    station = down_core(model)
    give(station, part(Port.H, 0))
    (message,) = give(station, tensor(Port.H, HS[5:6], first=0))
    assert message.flags & Flags.POISON
    assert isinstance(Answer("s", message).error, PoisonedError)
    assert give(station, part(Port.U, 0)) == []
    assert station.counters.events["poisoned_frames"] == 1
    give(station, part(Port.H, 0, epoch=2))
    assert len(give(station, part(Port.U, 0, epoch=2))) == 1


def test_a_newer_epoch_drops_half_joins(model: ModelFolder) -> None:
    station = down_core(model)
    give(station, part(Port.H, 3))
    give(station, part(Port.U, 4, epoch=2, base=3))
    assert station.sessions.join_gauge.num_bytes == 4 * F
    assert ask(station, Where(9)).queued == 1
    assert len(give(station, part(Port.H, 4, epoch=2, base=3))) == 1
    assert station.sessions.join_gauge.num_bytes == 0


def test_parts_of_different_lengths_do_not_join(model: ModelFolder) -> None:
    station = down_core(model)
    give(station, part(Port.H, 0, 3))
    (message,) = give(station, part(Port.U, 0, 2))
    assert isinstance(Answer("s", message).error, BadTensorError)
    assert "3 and 2 rows" in str(Answer("s", message).error)


def test_joins_of_a_session_are_bounded(model: ModelFolder) -> None:
    station = down_core(model, max_joins=3)
    for first in range(3):
        assert give(station, part(Port.H, first)) == []
    (message,) = give(station, part(Port.H, 3))
    assert isinstance(Answer("s", message).error, OverloadedError)
    assert "at most 3" in str(Answer("s", message).error)


def test_bytes_that_wait_are_bounded_over_all_sessions(model: ModelFolder) -> None:
    station = down_core(model, max_queued_bytes=4 * H * 2 + 10)
    ask(station, Open(10, ROUTE, 64))
    give(station, part(Port.H, 0))
    give(station, part(Port.H, 0, session=10))
    (message,) = give(station, part(Port.H, 1))
    assert isinstance(Answer("s", message).error, OverloadedError)
    assert station.counters.events["overloads"] == 1


def test_a_call_must_bring_both_inputs(model: ModelFolder) -> None:
    station = make_core(model, "down:0-2")
    ask(station, Open(9, 0, 64))
    (refused,) = receive(station, bands.DOWN, [part(Port.H, 0, route=0)])
    assert "H and U are expected, in one message of a call" in str(Answer("s", refused).error)
    (reply,) = receive(station, bands.DOWN, [part(Port.U, 0, route=0), part(Port.H, 0, route=0)])
    assert [t.port for t in Answer("s", reply).tensors] == [Port.X]


def test_the_sum_of_embed_parts_is_that_of_the_whole_table_bit_for_bit() -> None:
    whole = RNG.standard_normal((5, H)).astype(np.float32)
    parts = [np.where(np.arange(5)[:, None] % 3 == i, whole, np.float32(0)) for i in range(3)]
    assert np.array_equal(sum_parts(parts).view(np.uint32), whole.view(np.uint32))


def test_joins_of_one_stage_do_not_complete_those_of_another() -> None:
    joins = Joins(JoinGauge())
    a, b = ("down", 0, 0, 0, 1), ("down", 1, 1, 0, 1)
    assert joins.add(a, 2, 0, HS[:1], part(Port.H, 0)) is Part.WAITING
    assert joins.add(b, 2, 1, US[:1], part(Port.U, 0)) is Part.WAITING
    assert not isinstance(joins.add(a, 2, 1, US[:1], part(Port.U, 0)), Part)
    assert len(joins) == 1
