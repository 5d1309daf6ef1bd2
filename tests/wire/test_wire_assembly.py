"""Messages cut into frames and put together again, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeonflow import Flags, Frame, Message
from aeonflow.assembly import MAX_PARTIAL_MESSAGES, Assembler, cut_message, packed_frames, read_message
from aeonflow.bands import seed_stream
from aeonflow.errors import FrameTooLargeError, OversizeError, RemoteProtocolError
from aeonflow.frames import MAX_PAYLOAD_BYTES, decode_frames

NO_FLAGS = Flags(0)


def assemble(packed: list[bytes], max_message_bytes: int = 1 << 30) -> list[Message]:
    assembler = Assembler(max_message_bytes)
    frames = [frame for one in packed for frame in decode_frames(one)]
    return [message for frame in frames if (message := assembler.receive(frame)) is not None]


@given(st.lists(st.binary(max_size=50), max_size=6), st.integers(1, 40), st.integers(0, 0x3F).map(Flags))
def test_a_message_is_whole_again_however_it_was_cut(pieces: list[bytes], chunk: int, flags: Flags) -> None:
    flags = (flags | Flags.FIN) & ~Flags.VENT
    packed = cut_message(7, 9, pieces, flags, max_message_bytes=1000, max_payload_bytes=chunk)
    (message,) = assemble(packed)
    assert message == Message(7, 9, flags, b"".join(pieces))
    assert all(len(one) <= 10 + chunk for one in packed)


def test_only_the_last_frame_of_a_message_has_fin() -> None:
    packed = cut_message(7, 9, b"abcde", Flags.FIN | Flags.FORK, max_message_bytes=5, max_payload_bytes=2)
    decoded = [decode_frames(one)[0] for one in packed]
    assert [bytes(frame.payload) for frame in decoded] == [b"ab", b"cd", b"e"]
    assert [frame.flags for frame in decoded] == [Flags.FORK, Flags.FORK, Flags.FORK | Flags.FIN]


def test_a_message_that_fills_its_frames_ends_without_an_empty_one() -> None:
    assert len(cut_message(7, 9, b"abcd", max_message_bytes=4, max_payload_bytes=2)) == 2


def test_a_message_over_16_mib_takes_two_frames() -> None:
    packed = cut_message(7, 9, [bytes(MAX_PAYLOAD_BYTES), b"x"], max_message_bytes=1 << 30)
    assert [len(one) for one in packed] == [10 + MAX_PAYLOAD_BYTES, 11]
    (message,) = assemble(packed)
    assert len(message.payload) == MAX_PAYLOAD_BYTES + 1


def test_a_message_one_byte_over_the_limit_is_refused_before_sending_with_both_sizes() -> None:
    assert len(cut_message(7, 9, bytes(100), max_message_bytes=100)) == 1
    with pytest.raises(FrameTooLargeError, match="101 bytes on stream 0007: this connection takes 100"):
        cut_message(7, 9, bytes(101), max_message_bytes=100)


def test_messages_of_several_sequences_may_interleave() -> None:
    assembler = Assembler(100)
    assert assembler.receive(Frame(1, 1, NO_FLAGS, b"a")) is None
    assert assembler.receive(Frame(1, 2, NO_FLAGS, b"b")) is None
    assert assembler.receive(Frame(2, 1, Flags.FIN, b"whole")) == Message(2, 1, Flags.FIN, b"whole")
    assert assembler.receive(Frame(1, 2, Flags.FIN, b"B")) == Message(1, 2, Flags.FIN, b"bB")
    assert assembler.receive(Frame(1, 1, Flags.FIN, b"A")) == Message(1, 1, Flags.FIN, b"aA")
    assert (assembler._partial, assembler.partial_bytes) == ({}, 0)


def test_a_reassembled_message_is_bounded_to_the_byte() -> None:
    for last, fits in ((b"x" * 40, True), (b"x" * 41, False)):
        assembler = Assembler(100)
        assembler.receive(Frame(1, 1, NO_FLAGS, bytes(60)))
        if fits:
            assert assembler.receive(Frame(1, 1, Flags.FIN, last)) is not None
        else:
            with pytest.raises(OversizeError, match="101 bytes or more: allowed are 100"):
                assembler.receive(Frame(1, 1, Flags.FIN, last))


def test_one_frame_beyond_the_limit_is_refused() -> None:
    with pytest.raises(OversizeError, match="allowed are 100"):
        Assembler(100).receive(Frame(1, 1, Flags.FIN, bytes(101)))


def test_unfinished_messages_together_hold_no_more_than_one_message_may() -> None:
    assembler = Assembler(100)
    assembler.receive(Frame(1, 1, NO_FLAGS, bytes(60)))
    with pytest.raises(OversizeError):
        assembler.receive(Frame(1, 2, NO_FLAGS, bytes(41)))


def test_the_number_of_unfinished_messages_is_bounded() -> None:
    assembler = Assembler(100)
    for sequence in range(MAX_PARTIAL_MESSAGES):
        assembler.receive(Frame(1, sequence, NO_FLAGS))
    with pytest.raises(RemoteProtocolError, match="at most 64"):
        assembler.receive(Frame(1, 1000, NO_FLAGS))


def test_an_unfinished_message_copies_and_pins_nothing_larger_than_itself() -> None:
    assembler = Assembler(100)
    buffer = bytearray(b"abc")
    assembler.receive(Frame(1, 1, NO_FLAGS, memoryview(buffer)))
    buffer.extend(b"a resize fails while a view of the buffer is held")
    assert assembler.receive(Frame(1, 1, Flags.FIN)) == Message(1, 1, Flags.FIN, b"abc")


def test_a_vent_ends_a_message_in_error_and_drops_what_came_before() -> None:
    assembler = Assembler(100)
    assembler.receive(Frame(1, 1, NO_FLAGS, bytes(60)))
    assert assembler.receive(Frame(1, 1, Flags.VENT, b"why")) == Message(1, 1, Flags.VENT, b"why")
    assert (assembler._partial, assembler.partial_bytes) == ({}, 0)


def test_a_seed_is_one_frame_with_or_without_fin() -> None:
    stream = seed_stream(1, 0)
    assert Assembler(100).receive(Frame(stream, 42, NO_FLAGS, b"h")) == Message(stream, 42, NO_FLAGS, b"h")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 0x3F), st.binary(max_size=40)), max_size=60))
def test_any_frames_keep_the_assembler_within_its_bounds(
    sent: list[tuple[int, int, bytes]],
) -> None:
    assembler = Assembler(100, max_partial_messages=2)
    for sequence, flags, payload in sent:
        try:
            message = assembler.receive(Frame(5, sequence, Flags(flags), payload))
        except RemoteProtocolError:
            break
        assert message is None or len(message.payload) <= 100
        assert assembler.partial_bytes <= 100
        assert len(assembler._partial) <= 2


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(0, 0x3F).map(Flags))
def test_the_frames_of_whole_messages_are_found_again_and_read_alone(payloads: list[bytes], flags: Flags) -> None:
    flags |= Flags.FIN
    packed = [cut_message(7, number, payload, flags)[0] for number, payload in enumerate(payloads)]
    together = b"".join(packed)
    wholes = Assembler(1000).read(together)
    assert packed_frames(together, wholes) == packed
    assert [read_message(frame) for frame in packed] == wholes


def test_frames_are_not_told_apart_where_a_message_is_in_pieces() -> None:
    assembler = Assembler(1000)
    first = Frame(7, 1, NO_FLAGS, b"first half").pack()
    assert assembler.read(first) == []
    together = Frame(7, 1, Flags.FIN, b", second").pack() + Frame(7, 2, Flags.FIN, b"whole").pack()
    wholes = assembler.read(together)
    assert [bytes(whole.payload) for whole in wholes] == [b"first half, second", b"whole"]
    assert packed_frames(together, wholes) == []
