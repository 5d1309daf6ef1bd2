"""alpha_jump: the message that carries a seed, and what it refuses to make."""

from __future__ import annotations

import array
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aeonflow import Flags, bands, fano
from aeonflow.errors import BadTensorError, FrameTooLargeError, PlanError
from aeonflow.frames import MAX_PAYLOAD_BYTES, Frame
from aeonflow.messages import Carrier, Route, StationAddress
from aeonflow.passes import LINE_PORTS, PassContext, fingerprint, is_genuine, max_seed_rows
from aeonflow.route import check_pair_x, successors
from aeonflow.tensors import Kind, Port, unpack_tensors

VECTORS = json.loads((Path(__file__).parents[1] / "wire" / "vectors" / "messages.json").read_text())


def rows(*values: float, width: int = 4) -> memoryview[Any]:
    return memoryview(array.array("f", values)).cast("B").cast("f", (len(values) // width, width))


def context(**changes: Any) -> PassContext:
    fields = {
        "session": 1, "epoch": 2, "base": 17, "settled": 17, "kind": Kind.DRAFT, "first": 42, "rows": 1, "options": 1,
        "route": 1, "hop": 1,
    }  # fmt: skip
    return PassContext(**{**fields, **changes})


def test_the_seed_of_the_vector_is_what_alpha_jump_makes() -> None:
    case = VECTORS["seed"]
    jump = context().alpha_jump(1, fano.PLUS, rows(1.0, -2.0, 0.5, 0.0), 7, "ws://b", 42)
    assert (jump.dst, jump.stream, jump.sequence, jump.layer) == ("ws://b", 0xAF62, 42, 8)
    frame = Frame(jump.stream, jump.sequence, Flags(case["flags"]), b"".join(jump.pieces))
    assert frame.pack().hex() == case["hex"]


def test_a_canonical_seed_carries_the_fingerprint_of_what_it_says() -> None:
    jump = context(kind=Kind.CANONICAL).alpha_jump(1, fano.PLUS, rows(1.0, -2.0, 0.5, 0.0), 7, "", 42)
    seed, claimed = unpack_tensors(b"".join(jump.pieces))
    assert (claimed.port, claimed.dim0, claimed.dim1) == (Port.TOKEN, 1, 8)
    assert is_genuine(seed, claimed)
    for changes in ({"layer": 9}, {"first": 43}, {"session": 3}, {"data": b"\x01" + bytes(seed.data)[1:]}):
        assert not is_genuine(msgspec.structs.replace(seed, **changes), claimed), changes
    assert is_genuine(msgspec.structs.replace(seed, hop=9, options=0), claimed), "the way is not the rows'"
    assert len(fingerprint(seed)) == 32


@pytest.mark.parametrize("line", [2, 6])
def test_a_line_that_is_only_a_name_carries_no_seed(line: int) -> None:
    with pytest.raises(BadTensorError, match=f"line {line} carries no seeds: lines 0, 1, 3, 4, 5 do"):
        context().alpha_jump(line, fano.PLUS, rows(1.0, 2.0, 3.0, 4.0), 7, "", 42)


def test_a_seed_of_another_position_than_its_pass_is_refused() -> None:
    with pytest.raises(BadTensorError, match="seed of position 41 from the pass at 42"):
        context().alpha_jump(1, fano.PLUS, rows(1.0, 2.0, 3.0, 4.0), 7, "", 41)


def test_rows_that_are_not_the_pass_are_refused() -> None:
    with pytest.raises(BadTensorError, match="3 rows of f32 are expected"):
        context(rows=3).alpha_jump(1, fano.PLUS, rows(1.0, 2.0, 3.0, 4.0), 7, "", 42)


def test_a_seed_that_is_more_than_one_frame_is_refused_with_the_rows_that_fit() -> None:
    width = 5376
    most = max_seed_rows(width)
    fits = memoryview(bytearray(most * width * 4)).cast("f", (most, width))
    pieces = context(rows=most).alpha_jump(1, fano.PLUS, fits, 0, "", 42).pieces
    assert sum(memoryview(piece).nbytes for piece in pieces) <= MAX_PAYLOAD_BYTES
    over = memoryview(bytearray((most + 1) * width * 4)).cast("f", (most + 1, width))
    with pytest.raises(FrameTooLargeError, match=f"at most {most} rows"):
        context(rows=most + 1).alpha_jump(1, fano.PLUS, over, 0, "", 42)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(LINE_PORTS)), st.sampled_from([fano.PLUS, fano.MINUS]), st.integers(0, 100),
    st.sampled_from([Kind.CANONICAL, Kind.DRAFT, Kind.SHADOW]),
)  # fmt: skip
def test_every_line_says_itself_in_stream_port_and_layer(line: int, sign: int, layer: int, kind: Kind) -> None:
    src = 0 if line == 0 else layer
    jump = context(kind=kind).alpha_jump(line, sign, rows(1.0, 2.0, 3.0, 4.0), src, "", 42)
    assert jump.stream == bands.seed_stream(line, sign)
    seed = unpack_tensors(b"".join(jump.pieces))[0]
    assert (seed.layer, seed.port, seed.kind) == (src + (line in (1, 5)), LINE_PORTS[line], kind)


TRISPLIT = Route(
    1,
    3,
    tuple(StationAddress(name, f"ws://{name}") for name in ("attn", "gate_up", "down", "ends")),
    (
        Carrier(0, "attn", 0, 2),
        Carrier(1, "gate_up", 0, 2),
        Carrier(2, "down", 0, 2),
        Carrier(3, "embed"),
        Carrier(3, "head"),
    ),
)


def with_seeds(mode: str, layers: tuple[int, ...], **changes: Any) -> Route:
    return msgspec.structs.replace(TRISPLIT, pair_x=mode, seeded=layers, **changes)


def test_a_bypassed_layer_gets_f_from_down_and_h_by_the_seed_alone() -> None:
    route = with_seeds("bypass", (2,))
    assert [hop.port for hop in successors(route, "attn", 0)] == [Port.N, Port.H]
    assert [hop.port for hop in successors(route, "attn", 1)] == [Port.N]
    assert [(hop.port, hop.layer) for hop in successors(route, "down", 1)] == [(Port.F, 2)]
    assert [hop.port for hop in successors(route, "down", 2)] == [Port.X]


def test_a_shadowed_route_has_the_edges_of_a_plain_one() -> None:
    for role in ("attn", "gate_up", "down"):
        for layer in range(3):
            assert successors(with_seeds("shadow", (1, 2)), role, layer) == successors(TRISPLIT, role, layer)


@pytest.mark.parametrize(
    ("mode", "layers", "changes", "words"),
    [
        ("often", (1,), {}, "one of off, shadow, bypass, draft, live"),
        ("shadow", (0,), {}, "layer 0 of route 1 is to be seeded: 1 to 2 can be"),
        ("shadow", (3,), {}, "layer 3 of route 1"),
        ("shadow", (1,), {"seed": "y"}, "seed 'y' of route 1: one of h, x"),
        ("bypass", (1,), {"carriers": TRISPLIT.carriers[1:]}, "no station carries attn"),
    ],
)
def test_a_route_whose_seeds_cannot_be_is_refused(mode: str, layers: Any, changes: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        check_pair_x(with_seeds(mode, layers, **changes))
