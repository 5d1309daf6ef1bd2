"""The frame codec: vectors, chunking, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeonflow import Flags, Frame, FrameDecoder
from aeonflow.errors import FrameTooLargeError, LocalProtocolError, OversizeError, RemoteProtocolError
from aeonflow.frames import HEADER_BYTES, MAX_FRAMES, MAX_PAYLOAD_BYTES, decode_frames, is_single_frame, pack_header

from .peers import vectors

FRAMES = vectors("frames")


def by_name(case: dict[str, Any]) -> str:
    return str(case["name"])


frames = st.builds(
    Frame,
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0x3F).map(Flags),
    st.binary(max_size=300),
)


@pytest.mark.parametrize("case", FRAMES["frames"], ids=by_name)
def test_a_vector_packs_and_decodes_to_itself(case: dict[str, Any]) -> None:
    frame = Frame(case["stream"], case["sequence"], Flags(case["flags"]), bytes.fromhex(case["payload"]))
    assert frame.pack().hex() == case["hex"]
    assert FrameDecoder().feed(bytes.fromhex(case["hex"])) == [frame]


def test_the_first_vector_is_these_literal_bytes() -> None:
    packed = Frame(42, 7, Flags.FORK | Flags.RACE, b"\x01\x02\x03\x04\x05").pack()
    assert packed == bytes.fromhex("002a00000007030000050102030405")


@pytest.mark.parametrize("case", FRAMES["headers"], ids=by_name)
def test_a_header_vector_announces_its_length(case: dict[str, Any]) -> None:
    header = bytes.fromhex(case["hex"])
    assert pack_header(case["stream"], case["sequence"], case["flags"], case["length"]) == header
    (frame,) = FrameDecoder().feed(header + bytes(case["length"]))
    assert (frame.stream_id, frame.sequence, frame.flags) == (case["stream"], case["sequence"], case["flags"])
    assert len(frame.payload) == case["length"]


@pytest.mark.parametrize("case", FRAMES["refused"], ids=by_name)
def test_reserved_flags_are_refused_at_the_header(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match=case["reason"]):
        FrameDecoder().feed(bytes.fromhex(case["hex"]))
    assert not is_single_frame(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("case", FRAMES["truncated"], ids=by_name)
def test_a_message_that_ends_inside_a_frame_is_refused_whole(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="ends inside frame"):
        decode_frames(bytes.fromhex(case["hex"]))


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="empty message"):
        decode_frames(b"")


def test_a_message_of_more_frames_than_are_taken_is_refused_and_a_stream_is_not() -> None:
    packed = Frame(1, 1, Flags.FIN).pack()
    assert len(decode_frames(packed * MAX_FRAMES)) == MAX_FRAMES
    with pytest.raises(RemoteProtocolError, match=r"40,970 bytes holds more than 4,096 frames"):
        decode_frames(packed * (MAX_FRAMES + 1))
    assert len(FrameDecoder().feed(packed * (MAX_FRAMES + 1))) == MAX_FRAMES + 1


def test_a_payload_of_16_777_216_bytes_is_refused_by_the_packer_with_both_sizes() -> None:
    with pytest.raises(FrameTooLargeError, match=r"16,777,216 bytes.*16,777,215"):
        Frame(1, 2, Flags.FIN, bytes(MAX_PAYLOAD_BYTES + 1)).pack()
    assert len(Frame(1, 2, Flags.FIN, bytes(MAX_PAYLOAD_BYTES)).pack()) == HEADER_BYTES + MAX_PAYLOAD_BYTES


@pytest.mark.parametrize(
    ("stream", "sequence", "flags"),
    [(0x10000, 0, 0), (-1, 0, 0), (0, 1 << 32, 0), (0, -1, 0), (0, 0, 0x40), (0, 0, 0x80), (0, 0, 0x100)],
)
def test_fields_that_do_not_fit_are_refused_by_the_packer(stream: int, sequence: int, flags: int) -> None:
    with pytest.raises(LocalProtocolError):
        pack_header(stream, sequence, flags, 0)


def test_a_frame_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Frame(1, 2).sequence = 3  # type: ignore[misc]


@given(st.lists(frames, min_size=1, max_size=8), st.data())
def test_a_stream_cut_anywhere_decodes_to_the_same_frames(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(frame.pack() for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = FrameDecoder()
    received: list[Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
    assert received == sent
    assert decoder.pending_bytes == 0
    assert decode_frames(stream) == sent


def test_a_stream_fed_byte_by_byte_decodes_and_holds_back_no_more_than_a_frame() -> None:
    sent = [Frame(9, n, Flags.FIN, bytes(n)) for n in range(20)]
    decoder = FrameDecoder()
    received: list[Frame] = []
    for byte in b"".join(frame.pack() for frame in sent):
        received += decoder.feed(bytes([byte]))
        assert decoder.pending_bytes <= HEADER_BYTES + 19
    assert received == sent


def test_decoded_payloads_survive_later_feeds() -> None:
    decoder = FrameDecoder()
    decoder.feed(Frame(1, 1, Flags.FIN, b"first").pack()[:4])
    (first,) = decoder.feed(Frame(1, 1, Flags.FIN, b"first").pack()[4:] + b"\0\0")
    for _ in range(100):
        decoder.feed(b"\0" * 10)
    assert first.payload == b"first"


def test_nothing_is_delivered_from_data_that_holds_a_bad_frame() -> None:
    good, bad = Frame(1, 1, Flags.FIN, b"good").pack(), bytes.fromhex("00010000000240000000")
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError, match=r"frame 2 \(stream 0001\) has flags 0x40"):
        decoder.feed(good + bad)
    with pytest.raises(RemoteProtocolError):
        decoder.feed(good)


def test_a_length_beyond_the_limit_is_refused_before_its_payload_comes() -> None:
    decoder = FrameDecoder(max_payload_bytes=100)
    assert decoder.feed(pack_header(1, 1, Flags.FIN, 100))[:] == []
    assert decoder.feed(bytes(100))[0].payload == bytes(100)
    with pytest.raises(OversizeError, match="101 bytes, allowed are 100"):
        decoder.feed(pack_header(1, 1, Flags.FIN, 101))


@given(st.binary(max_size=400), st.integers(0, 200))
def test_any_bytes_decode_or_are_refused_and_never_hold_more_than_they_brought(data: bytes, limit: int) -> None:
    decoder = FrameDecoder(max_payload_bytes=limit)
    try:
        decoded = decoder.feed(data)
    except RemoteProtocolError:
        assert decoder.pending_bytes == 0
        return
    assert sum(HEADER_BYTES + len(frame.payload) for frame in decoded) + decoder.pending_bytes == len(data)
    assert decoder.pending_bytes < HEADER_BYTES + max(limit, 1)


@given(st.lists(frames, min_size=1, max_size=4), st.integers(0, 10_000), st.integers(0, 255))
def test_a_mutated_message_decodes_or_is_refused(sent: list[Frame], where: int, value: int) -> None:
    message = bytearray(b"".join(frame.pack() for frame in sent))
    message[where % len(message)] = value
    try:
        decoded = decode_frames(message)
    except RemoteProtocolError:
        return
    assert b"".join(frame.pack() for frame in decoded) == bytes(message)


@given(frames)
def test_a_single_frame_is_told_from_anything_else(frame: Frame) -> None:
    packed = frame.pack()
    assert is_single_frame(packed)
    assert not is_single_frame(packed + b"\0")
    assert not is_single_frame(packed[:-1])
    assert not is_single_frame(packed + packed)
