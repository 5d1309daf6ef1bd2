"""Whole messages against golden bytes; errors and their codes; the rules of hello."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aeonflow import Flags, Limits, check_exact, check_hello, errors, messages
from aeonflow.assembly import Assembler, Message, cut_message
from aeonflow.bands import is_seed, seed_stream
from aeonflow.errors import AeonflowError, CallError, RemoteProtocolError, VersionMismatchError
from aeonflow.frames import decode_frames
from aeonflow.handshake import MAX_CONNECTION_MESSAGE_BYTES, check_limits, negotiate, read_connection_message
from aeonflow.tensors import Kind, Port, Tensor, pack_tensors, unpack_tensors
from aeonflow.vents import read_vent

from .peers import hello, vectors

MESSAGES = vectors("messages")


def read(case: dict[str, Any]) -> Message:
    (frame,) = decode_frames(bytes.fromhex(case["hex"]))
    message = Assembler(1 << 20).receive(frame)
    assert message is not None
    assert (message.stream, message.sequence, message.flags) == (case["stream"], case["sequence"], case["flags"])
    return message


def decoder_of(stream: int, name: str) -> Any:
    if stream == 0:
        return messages.decode_connection
    return messages.decode_reply if name == "Opened" else messages.decode_request


@pytest.mark.parametrize("case", MESSAGES["control"], ids=lambda case: case["name"])
def test_a_control_message_vector_decodes_and_encodes_to_itself(case: dict[str, Any]) -> None:
    message = read(case)
    content = decoder_of(case["stream"], case["type"])(message.payload)
    assert type(content).__name__ == case["type"]
    found = msgspec.to_builtins({name: getattr(content, name) for name in case["fields"]})
    assert msgspec.json.decode(msgspec.json.encode(found)) == case["fields"]
    (packed,) = cut_message(case["stream"], case["sequence"], messages.encode(content))
    assert packed.hex() == case["hex"]


def test_the_route_vector_is_the_whole_table() -> None:
    content = messages.decode_request(read(MESSAGES["route"]).payload)
    assert isinstance(content, messages.InstallRoute)
    assert content.self_index == 1
    assert [station.url for station in content.route.stations] == ["ws://127.0.0.1:1", "ws://127.0.0.1:2"]
    assert [carrier.role for carrier in content.route.carriers] == ["embed", "block", "head"]


def test_the_vent_vector_is_the_typed_error_it_names() -> None:
    case = MESSAGES["vent"]
    message = read(case)
    assert msgspec.structs.asdict(messages.decode_vent(message.payload)) == case["fields"]
    error = read_vent(message)
    assert type(error) is errors.GapError
    assert str(error) == "attn-0: gap: have 41, got 43"


def test_the_seed_vector_is_a_true_seed_of_line_145_plus() -> None:
    case = MESSAGES["seed"]
    assert case["hex"].startswith("af620000002a10000040")
    assert case["stream"] == seed_stream(case["line"], case["orientation"]) == 0xAF62
    assert is_seed(case["stream"])
    message = read(case)
    expected = Tensor(**{**case["tensor"], "data": bytes.fromhex(case["tensor"]["data"])})
    (seed,) = unpack_tensors(message.payload)
    assert msgspec.structs.replace(seed, data=bytes(seed.data)) == expected
    assert (seed.port, seed.kind) == (Port.SEED, Kind.DRAFT)
    assert seed.first == message.sequence == 42  # a seed's sequence is its position
    (packed,) = cut_message(case["stream"], 42, pack_tensors([expected]))
    assert packed.hex() == case["hex"]


def test_streams_of_seeds_end_before_the_reserved_two() -> None:
    assert [is_seed(stream) for stream in (0xAF5F, 0xAF60, 0xAF6D, 0xAF6E)] == [False, True, True, False]
    with pytest.raises(ValueError, match="lines are 0-6"):
        seed_stream(7, 0)


def test_a_message_of_a_later_version_with_more_fields_is_read() -> None:
    heartbeat = messages.decode_connection(msgspec.msgpack.encode([2, 5, 0.5, "a field of later"]))
    assert heartbeat == messages.Heartbeat(5, 0.5)
    assert messages.decode_vent(msgspec.msgpack.encode(["gap", "text"])) == messages.Vent("gap", "text")


def test_every_error_class_comes_back_from_its_code() -> None:
    def walk(cls: type[AeonflowError]) -> list[type[AeonflowError]]:
        return [cls, *(found for sub in cls.__subclasses__() for found in walk(sub))]

    for cls in (found for found in walk(AeonflowError) if found.__module__ == errors.__name__):
        error = errors.from_code(cls.code, "why")
        assert error.code == cls.code
        assert str(error) == "why"


def test_an_unknown_code_is_a_call_error() -> None:
    assert type(errors.from_code("of-a-later-version", "why")) is CallError


def test_a_vent_that_does_not_decode_is_still_an_error() -> None:
    error = read_vent(Message(0xAF20, 1, Flags.VENT, b"\xc1\xc1"))
    assert type(error) is CallError
    assert "af20" in str(error)


def test_hello_names_both_protocol_versions() -> None:
    local, remote = hello("h", "host", software="aeonflow 0.1"), hello("s", protocol=7, software="aeonflow 9.0")
    with pytest.raises(VersionMismatchError, match=r"host 'h' speaks 1 \(aeonflow 0.1\), station 's' speaks 7 \(aeonf"):
        check_hello(local, remote)


def test_hello_names_both_fingerprints_and_an_empty_one_fits_any() -> None:
    with pytest.raises(VersionMismatchError, match="host 'h' has aaa, station 's' has bbb"):
        check_hello(hello("h", "host", fingerprint="aaa"), hello("s", fingerprint="bbb"))
    check_hello(hello("h", "host"), hello("s", fingerprint="bbb"))


def test_numerics_ids_are_compared_only_when_exactness_is_asked_for() -> None:
    local, remote = hello("h", "host", numerics="n1"), hello("s", numerics="n2")
    check_hello(local, remote)
    with pytest.raises(VersionMismatchError, match="numerics id: host 'h' has n1, station 's' has n2"):
        check_exact(local, remote)
    check_exact(local, hello("s"))


def test_the_smaller_limit_rules() -> None:
    assert negotiate(Limits(100, 5, 9), Limits(200, 3, 9)) == Limits(100, 3, 9)
    for ours, theirs, rule in ((0, 0, 0), (0, 8, 8), (9, 0, 9), (9, 8, 8)):
        assert negotiate(Limits(max_rows=ours), Limits(max_rows=theirs)).max_rows == rule


def test_limits_that_leave_no_room_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="limits of 0 message bytes"):
        check_limits(Limits(max_message_bytes=0))


@pytest.mark.parametrize("payload", [b"", b"\x80\x04\x95pickle", b"\xc1", msgspec.msgpack.encode([99, 1])])
def test_what_is_no_connection_message_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="stream 0000"):
        read_connection_message(payload)


def test_a_connection_message_is_bounded() -> None:
    with pytest.raises(RemoteProtocolError, match="at most 65,536"):
        read_connection_message(bytes(MAX_CONNECTION_MESSAGE_BYTES + 1))
