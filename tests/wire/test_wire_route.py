"""Successors derived from a route's table."""

from __future__ import annotations

import pytest

from aeonflow import bands
from aeonflow.errors import PlanError
from aeonflow.messages import Carrier, Route, StationAddress
from aeonflow.route import Hop, ffn_slices, holder, input_holders, num_parts, successors
from aeonflow.tensors import Port

STATIONS = tuple(StationAddress(name, f"ws://{name}") for name in ("attn", "gate_up", "down", "ends"))
TRISPLIT = Route(
    1,
    2,
    STATIONS,
    (
        Carrier(0, "attn", 0, 1),
        Carrier(1, "gate_up", 0, 1),
        Carrier(2, "down", 0, 1),
        Carrier(3, "embed"),
        Carrier(3, "head", part=1, parts=2),
        Carrier(0, "head", part=0, parts=2),
    ),
)
FFN_ENDS = ("attn", "ffn-0", "ffn-1", "ends")
SLICED = Route(
    3,
    3,
    tuple(StationAddress(name, f"ws://{name}") for name in FFN_ENDS),
    (
        Carrier(0, "attn", 0, 1),
        Carrier(2, "ffn", 0, 1, 1, 2),
        Carrier(1, "ffn", 0, 1, 0, 2),
        Carrier(3, "embed"),
        Carrier(3, "block", 2, 2),
        Carrier(3, "head", part=1, parts=2),
        Carrier(0, "head", part=0, parts=2),
    ),
)
BLOCKS = Route(
    2, 4, STATIONS[:2], (Carrier(0, "embed"), Carrier(0, "block", 0, 1), Carrier(1, "block", 2, 3), Carrier(1, "head"))
)


def test_attention_sends_n_to_gate_up_and_h_past_it_to_down() -> None:
    assert successors(TRISPLIT, "attn", 1) == [Hop(1, bands.GATE_UP, 1, Port.N), Hop(2, bands.DOWN, 1, Port.H)]
    assert successors(TRISPLIT, "gate_up", 1) == [Hop(2, bands.DOWN, 1, Port.U)]


def test_down_enters_the_next_layer_and_after_the_last_every_head_part_in_order() -> None:
    assert successors(TRISPLIT, "down", 0) == [Hop(0, bands.ATTN, 1, Port.X)]
    assert successors(TRISPLIT, "down", 1) == [Hop(0, bands.HEAD, 0, Port.X), Hop(3, bands.HEAD, 0, Port.X)]
    assert successors(TRISPLIT, "head", 0) == []


def test_the_embedding_enters_layer_0_and_blocks_follow_each_other() -> None:
    assert successors(TRISPLIT, "embed", 0) == [Hop(0, bands.ATTN, 0, Port.X)]
    assert successors(BLOCKS, "embed", 0) == [Hop(0, bands.BLOCK, 0, Port.X)]
    assert successors(BLOCKS, "block", 1) == [Hop(1, bands.BLOCK, 2, Port.X)]
    assert successors(BLOCKS, "block", 3) == [Hop(1, bands.HEAD, 0, Port.X)]


def test_shards_are_counted_by_role() -> None:
    assert (num_parts(TRISPLIT, "head"), num_parts(TRISPLIT, "embed"), num_parts(TRISPLIT, "ffn")) == (2, 1, 0)


def test_attention_sends_n_to_every_ffn_slice_and_h_past_them_to_the_next_layers_input() -> None:
    slices = [Hop(1, bands.FFN, 0, Port.N), Hop(2, bands.FFN, 0, Port.N)]
    assert successors(SLICED, "attn", 0) == [*slices, Hop(0, bands.ATTN, 1, Port.H)]
    assert successors(SLICED, "attn", 1)[2:] == [Hop(3, bands.BLOCK, 2, Port.H)]


def test_an_ffn_slice_sends_its_sum_where_h_goes() -> None:
    assert successors(SLICED, "ffn", 0) == [Hop(0, bands.ATTN, 1, Port.F)]
    assert successors(SLICED, "ffn", 1) == [Hop(3, bands.BLOCK, 2, Port.F)]
    two_layers = Route(3, 2, SLICED.stations, tuple(c for c in SLICED.carriers if c.role != "block"))
    for role, port in (("attn", Port.H), ("ffn", Port.F)):
        heads = [hop for hop in successors(two_layers, role, 1) if hop.stream == bands.HEAD]
        assert heads == [Hop(0, bands.HEAD, 0, port), Hop(3, bands.HEAD, 0, port)]


def test_slices_of_a_layer_are_in_order_and_complete() -> None:
    assert [(c.station, c.part) for c in ffn_slices(SLICED, 1)] == [(1, 0), (2, 1)]
    assert ffn_slices(SLICED, 2) == []
    assert ffn_slices(TRISPLIT, 0) == []
    without = tuple(c for c in SLICED.carriers if c.part != 0 or c.role != "ffn")
    for carriers in (
        without,
        (*without, Carrier(1, "ffn", 0, 1, 0, 4)),
        (*SLICED.carriers, Carrier(0, "ffn", 0, 0, 1, 2)),
    ):
        with pytest.raises(PlanError, match=r"ffn of layer 0: slices .*0/k to k-1/k are needed"):
            successors(Route(3, 3, SLICED.stations, carriers), "attn", 0)


def test_what_no_station_carries_is_named() -> None:
    with pytest.raises(PlanError, match="no station carries down of layer 5"):
        holder(TRISPLIT, "down", 5)
    with pytest.raises(PlanError, match="no station takes the input of layer 1"):
        input_holders(BLOCKS, 1)
    with pytest.raises(PlanError, match="'warden' has no place in a chain"):
        successors(BLOCKS, "warden", 0)
