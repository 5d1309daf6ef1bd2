"""What a station refuses: tensors, sessions and streams that it cannot take. It says why, with the numbers."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest

from aeonflow import Flags, bands
from aeonflow.errors import AeonflowError, BadMessageError, BadTensorError, UnknownSessionError, UnknownStreamError
from aeonflow.messages import Done, GetCard, InstallRoute, Open, Route, StationAddress, encode
from aeonflow.tensors import DType, Port, Tensor, Want, options_byte
from stations.core.station import Station
from stations.models.folder import ModelFolder

from .cores import Answer, ask, carriers_of, ids_tensor, make_core, receive, tensor

H = 64
ROW = np.ones((1, H), np.float32)


@pytest.fixture
def station(model: ModelFolder) -> Station:
    core = make_core(model, "embed,attn:0-1,gate_up:0-1,down:0-1,head:1/2")
    core.link_opened(50, False)
    ask(core, Open(9, 0, 100))
    return core


def refused(station: Station, stream: int, one: Tensor, **keywords: int) -> str:
    (message,) = receive(station, stream, [one], **keywords)
    answer = Answer("s", message)
    assert isinstance(answer.error, BadTensorError), answer.error
    return str(answer.error)


def x(array: np.ndarray = ROW, **fields: int) -> Tensor:
    return tensor(Port.X, array, **{"route": 0, **fields})


CASES = {
    "a port of another role": (bands.ATTN, lambda: tensor(Port.N, ROW, route=0), "port N at attn: it takes X"),
    "a width that is not the model's": (bands.ATTN, lambda: x(np.ones((1, 65), np.float32)), "1x65 for attn: 1x64"),
    "rows that are not those of the pass": (bands.ATTN, lambda: x(rows=2), "1x64 for attn: 2x64"),
    "a layer that is not carried": (bands.ATTN, lambda: x(layer=2), "carries attn of layers 0, 1 on route 0"),
    "a role that is not carried": (bands.BLOCK, lambda: x(), "carries no block"),
    "token ids as floats": (bands.EMBED, lambda: tensor(Port.IDS, ROW[:, :1], route=0), "token ids are U32"),
    "rows as integers": (bands.ATTN, lambda: tensor(Port.X, ROW, DType.U32, route=0), "as U32: this station takes F32"),
    "a dtype that is only an option": (
        bands.ATTN,
        lambda: tensor(Port.X, ROW.astype(np.float16), DType.F16, route=0),
        "as F16: this station takes F32",
    ),
    "a token beyond the vocabulary": (bands.EMBED, lambda: ids_tensor([3, 512], route=0), "the vocabulary has 512"),
    "positions beyond the context": (bands.ATTN, lambda: x(first=128), "beyond the context of 128 tokens"),
    "positions beyond the session's": (bands.ATTN, lambda: x(first=100), "the session was opened for 100"),
    "a route that is not installed": (bands.ATTN, lambda: x(route=3), "route 3 is not installed here"),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "make", "reason"), CASES.values(), ids=CASES.keys())
def test_a_tensor_is_refused_for(station: Station, stream: int, make, reason: str) -> None:
    assert reason in refused(station, stream, make())
    (message,) = receive(station, bands.ATTN, [x()])
    assert Answer("s", message).vent is None, "the station goes on"


def test_rows_beyond_the_limit_of_a_pass_are_refused(model: ModelFolder) -> None:
    core = make_core(model, "attn:0-1", max_rows=8)
    ask(core, Open(9, 0, 100))
    assert "pass of 9 rows: at most 8" in refused(core, bands.ATTN, x(np.ones((9, H), np.float32)))


def test_all_logits_of_a_pass_must_fit_a_message(model: ModelFolder) -> None:
    core = make_core(model, "head", max_message_bytes=5000)
    ask(core, Open(9, 0, 100))
    rows = np.ones((3, H), np.float32)
    assert "logits of 3 rows are 6,192 bytes: 5,000" in refused(
        core, bands.HEAD, x(rows, options=options_byte(want=Want.ALL))
    )


def test_a_frame_for_a_session_that_is_not_open_is_vented_to_a_host_and_counted_from_a_station(
    station: Station,
) -> None:
    (message,) = receive(station, bands.ATTN, [x(session=77)], sequence=21)
    assert isinstance(Answer("s", message).error, UnknownSessionError)
    assert (message.link, message.sequence) == (1, 21)
    assert receive(station, bands.ATTN, [x(session=77, route=5)], link=50) == []
    assert station.counters.events["unknown_sessions"] == 2


def test_one_host_cannot_touch_the_session_of_another(station: Station) -> None:
    station.link_opened(2, True)
    (message,) = receive(station, bands.ATTN, [x()], link=2)
    assert message.link == 2
    assert isinstance(Answer("s", message).error, UnknownSessionError)


def test_a_station_may_forward_but_not_call(station: Station) -> None:
    (message,) = receive(station, bands.ATTN, [x()], link=50)
    assert "not calls" in str(Answer("s", message).error)
    (message,) = receive(station, bands.CONTROL, encode(Open(10, 0, 10)), link=50)
    assert message.link == 50
    assert Answer("s", message).error.code == "forbidden"


GARBAGE = {
    "nothing": b"",
    "a pickle": pickle.dumps({"a": 1}),
    "a prefix cut short": b"\0" * 47,
    "a prefix of zeros": b"\0" * 48,
    "dimensions that multiply beyond any memory": struct.pack(
        "<QIIIIHHBBBBIHHII", 9, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 2, 0xFFFFFFFF, 0xFFFFFFFF
    ),
    "255 dimensions": struct.pack("<QIIIIHHBBBBIHHII", 9, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 255, 1, 64) + b"\0" * 256,
    "an unknown dtype": struct.pack("<QIIIIHHBBBBIHHII", 9, 1, 0, 0, 0, 1, 0, 0, 1, 0, 9, 0, 0, 2, 1, 64) + b"\0" * 256,
    "ones": b"\xff" * 400,
}


@pytest.mark.parametrize("stream", [*bands.STREAM_ROLES, bands.CONTROL, bands.TRACES, bands.KV_SLAB, 0x1234])
@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_answered_with_one_error_on_every_stream(station: Station, stream: int, payload: bytes) -> None:
    (message,) = receive(station, stream, payload, sequence=5)
    assert (message.link, message.stream, message.sequence) == (1, stream, 5)
    assert isinstance(Answer("s", message).error, AeonflowError)
    assert Answer("s", receive(station, bands.ATTN, [x()])[0]).vent is None


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_from_a_station_never_raises(station: Station, payload: bytes) -> None:
    for stream in bands.FORWARD_STREAMS:
        for flags in (Flags.FIN, Flags.FIN | Flags.VENT, Flags.FIN | Flags.POISON, Flags.VENT | Flags.POISON):
            receive(station, stream, payload, link=50, flags=flags)


def test_unknown_and_unbuilt_streams_are_named(station: Station) -> None:
    (message,) = receive(station, 0x1234, b"")
    assert isinstance(Answer("s", message).error, UnknownStreamError)
    assert "1234" in str(Answer("s", message).error)
    (message,) = receive(station, bands.VOLUME_CAPTURE, b"")
    assert "volumes (stream af31) are not built yet" in str(Answer("s", message).error)


def test_a_seed_is_counted_and_dropped(station: Station) -> None:
    assert receive(station, bands.seed_stream(1, 0), b"anything") == []
    events = station.counters.events
    assert (events["seeds_received"], events["seeds_dropped"], events["seeds_sent"]) == (1, 1, 0)


def test_a_control_request_of_another_stream_is_refused(station: Station) -> None:
    (message,) = receive(station, bands.CONTROL, encode(GetCard()))
    assert isinstance(Answer("s", message).error, BadMessageError)


A, B = StationAddress("a", "ws://a"), StationAddress("b", "")
NEIGHBOURS = carriers_of(["attn:0-1", "gate_up:0-2,down:0-2,attn:2-2,head"], 3)
ROUTES = {
    "the relay's id": (Route(0, 3, (), ()), "route 0 is the relay"),
    "another depth": (Route(5, 4, (), ()), "has 4 layers, the model has 3"),
    "a place outside it": (Route(5, 3, (), ()), "station index 0, it has 0 stations"),
    "roles not carried": (
        Route(5, 3, (A,), carriers_of(["embed,block:0-2,head"], 3)),
        "the route asks for block:0-2, this station carries embed, attn:0-1",
    ),
    "a missing role": (Route(5, 3, (A,), carriers_of(["embed,attn:0-1"], 3)), "no station carries gate_up"),
    "a neighbour without address": (Route(5, 3, (A, B), NEIGHBOURS), "station b has no address"),
}


@pytest.mark.parametrize(("route", "reason"), ROUTES.values(), ids=ROUTES.keys())
def test_a_route_is_refused_for(station: Station, route: Route, reason: str) -> None:
    with pytest.raises(AeonflowError, match=reason):
        ask(station, InstallRoute(route, 0))


def test_a_host_may_install_a_bounded_number_of_routes_and_the_oldest_unused_goes(model: ModelFolder) -> None:
    core = make_core(model, "embed,block:0-2,head", max_routes=2)
    carriers = carriers_of(["embed,block:0-2,head"], 3)
    for number in (1, 2):
        assert ask(core, InstallRoute(Route(number, 3, (StationAddress("a", "ws://a"),), carriers), 0)) == Done()
    ask(core, Open(9, 1, 10))
    ask(core, InstallRoute(Route(3, 3, (StationAddress("a", "ws://a"),), carriers), 0))
    ask(core, Open(10, 3, 10))
    with pytest.raises(BadTensorError, match="route 2 is not installed"):
        ask(core, Open(11, 2, 10))
    with pytest.raises(AeonflowError, match="2 routes are in use: at most 2"):
        ask(core, InstallRoute(Route(4, 3, (StationAddress("a", "ws://a"),), carriers), 0))


def test_an_embed_shard_is_chosen_by_the_part_of_the_call(model: ModelFolder) -> None:
    core = make_core(model, "embed:0/2,embed:1/2")
    ask(core, Open(9, 0, 100))
    for part in (0, 1):
        one = ids_tensor([300], route=0, options=options_byte(part=part))
        (reply,) = receive(core, bands.EMBED, [one])
        (answer,) = Answer("s", reply).tensors
        assert answer.part == part
        assert any(answer.data) == (part == 1), "token 300 of 512 is in the second half"
    assert "embed part 2" in refused(core, bands.EMBED, ids_tensor([1], route=0, options=options_byte(part=2)))
