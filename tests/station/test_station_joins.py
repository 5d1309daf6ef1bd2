"""Inputs that arrive apart meet, in any order, once; duplicates leave nothing behind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aeonflow import Flags, bands
from aeonflow.errors import BadTensorError, OverloadedError, PlanError, PoisonedError
from aeonflow.messages import Carrier, InstallRoute, Open, Route, StationAddress, Where
from aeonflow.tensors import Port, Tensor
from stations.core.joins import JoinGauge, Joins, Part, add_slices, sum_parts
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


SLICED = ["attn:0-2", "ffn:0-2:0/2", "ffn:0-2:1/2", "embed,head"]


def attn_core(model: ModelFolder, stations: list[str] = SLICED) -> Station:
    """The holder of layers whose inputs are h and the sums of two slices, ready for rows of layer 1."""
    station = make_core(model, stations[0])
    station.link_opened(50, False)
    addresses = tuple(StationAddress(f"s{i}", f"ws://s{i}") for i in range(len(stations)))
    ask(station, InstallRoute(Route(ROUTE, 3, addresses, carriers_of(stations, 3)), 0))
    ask(station, Open(9, ROUTE, 64))
    return station


def slice_sum(part: int, first: int, **fields: int) -> Tensor:
    return tensor(Port.F, HS[10 + part : 11 + part], first=first, part=part, layer=1, **fields)


def test_h_and_the_sums_of_all_slices_meet_in_any_order(model: ModelFolder) -> None:
    sent: list[bytes] = []
    h = tensor(Port.H, HS[:1], layer=1, hop=2)
    for order in itertools.permutations([h, slice_sum(0, 0, hop=3), slice_sum(1, 0, hop=4)]):
        station = attn_core(model)
        for one in order[:2]:
            assert receive(station, bands.ATTN, [one], link=50) == []
        outputs = receive(station, bands.ATTN, [order[2]], link=50)
        assert [(o.url, o.stream) for o in outputs] == [("ws://s1", bands.FFN), ("ws://s2", bands.FFN)]
        assert ask(station, Where(9)).queued == 1, "h of layer 1 waits inside for the slices of layer 1"
        assert Answer("s", ToLink(0, 0, 0, outputs[0].pieces)).tensors[0].hop == 5
        sent.append(b"".join(outputs[0].pieces))
    assert len(set(sent)) == 1


def test_a_slice_that_comes_twice_is_ignored_and_one_the_layer_does_not_have_is_refused(model: ModelFolder) -> None:
    station = attn_core(model)
    for one in (slice_sum(0, 0), slice_sum(0, 0)):
        assert receive(station, bands.ATTN, [one], link=50) == []
    assert station.counters.events["duplicate_parts"] == 1
    (message,) = receive(station, bands.ATTN, [slice_sum(2, 0)], link=50)
    assert "f of ffn slice 2: the layer before has 2 slices" in str(Answer("s", message).error)
    (message,) = receive(station, bands.ATTN, [tensor(Port.X, HS[:1], layer=1)], link=50)
    assert "port X at attn: it takes H, F" in str(Answer("s", message).error)
    together = [tensor(Port.H, HS[:1], layer=1), slice_sum(1, 0)]
    (message,) = receive(station, bands.ATTN, together, link=50)
    assert "H and F are expected, each in a message of its own" in str(Answer("s", message).error)
    (message,) = receive(station, bands.ATTN, [tensor(Port.F, US[:1], layer=1)], link=50)
    assert "F of 1x128 for attn: 1x64 is expected" in str(Answer("s", message).error)


def test_another_sum_of_the_same_slice_poisons_the_session(model: ModelFolder) -> None:
    station = attn_core(model)
    receive(station, bands.ATTN, [slice_sum(1, 0)], link=50)
    other = tensor(Port.F, HS[5:6], layer=1, part=1)
    (message,) = receive(station, bands.ATTN, [other], link=50)
    assert isinstance(Answer("s", message).error, PoisonedError)


def test_a_call_of_a_slice_answers_its_sum_and_names_its_part(model: ModelFolder) -> None:
    station = make_core(model, "ffn:0-2:1/4,ffn:0-2:3/4")
    ask(station, Open(9, 0, 64))
    for part in (1, 3):
        n = tensor(Port.N, HS[:2], layer=2, part=part, route=0)
        (reply,) = receive(station, bands.FFN, [n])
        (f,) = Answer("s", reply).tensors
        assert (f.port, f.part, f.dim0, f.dim1) == (Port.F, part, 2, H)
    (refused,) = receive(station, bands.FFN, [tensor(Port.N, HS[:2], layer=2, part=0, route=0)])
    assert "ffn part 0: this station does not carry it" in str(Answer("s", refused).error)


@pytest.mark.parametrize("slices", [2, 4, 8])
def test_slices_are_added_pairwise_then_to_h(slices: int) -> None:
    h, sums = HS[:1], [HS[1 + part : 2 + part] for part in range(slices)]
    halves = [add_slices([h * 0, *half]) for half in (sums[: slices // 2], sums[slices // 2 :])] if slices > 2 else sums
    assert np.array_equal(add_slices([h, *sums]), h + (halves[0] + halves[1]))
    assert np.isinf(add_slices([h, *[np.float32(3e38) + 0 * s for s in sums]])).all()


@pytest.mark.parametrize(
    ("stations", "at", "says"),
    [
        (["ffn:0-2:0/2,ffn:1-1:0/2", "attn:0-2,embed,head"], 0, "ffn of layer 1 is carried twice"),
        (["ffn:0-2:0/2", "attn:0-2,embed,head", "ffn:0-1:1/2"], 1, "ffn of layer 2: slices 0/2 on the route"),
        (["ffn:0-2:0/2", "ffn:0-2:0/2"], 1, r"asks for ffn:0-2:0/2, this station carries .*ffn:0-2:1/2"),
    ],
)
def test_a_route_whose_slices_do_not_fit_is_refused(
    model: ModelFolder, stations: list[str], at: int, says: str
) -> None:
    addresses = tuple(StationAddress(f"s{i}", f"ws://s{i}") for i in range(len(stations)))
    carried = ["ffn:0-2:0/2", "attn:0-2,embed,head,ffn:0-2:1/2"][at]
    with pytest.raises(PlanError, match=says):
        ask(make_core(model, carried), InstallRoute(Route(ROUTE, 3, addresses, carriers_of(stations, 3)), at))


def test_a_number_of_slices_that_has_no_tree_is_refused(model: ModelFolder) -> None:
    addresses = tuple(StationAddress(f"s{i}", f"ws://s{i}") for i in range(4))
    route = Route(ROUTE, 3, addresses, (*carriers_of(SLICED, 3), Carrier(0, "ffn", 0, 2, 0, 3)))
    with pytest.raises(PlanError, match="3 ffn slices, 2, 4, 8 are possible"):
        ask(make_core(model, "embed,head"), InstallRoute(route, 3))


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
