"""FlowSendBatcher: caps, order, one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeonflow import Flags, FlowSendBatcher, Frame
from aeonflow.errors import LinkClosedError
from aeonflow.frames import decode_frames


def frame(sequence: int, size: int = 4) -> bytes:
    return Frame(5, sequence, Flags.FIN, bytes(size)).pack()


class Turn:
    """Stands for the event loop: what is scheduled runs when the test says that the turn ends."""

    def __init__(self) -> None:
        self.scheduled: list[Callable[[], None]] = []
        self.messages: list[bytes] = []

    def batcher(self, **options: int) -> FlowSendBatcher:
        return FlowSendBatcher(
            lambda message: self.messages.append(bytes(message)), schedule=self.scheduled.append, **options
        )

    def end(self) -> None:
        scheduled, self.scheduled = self.scheduled, []
        for callback in scheduled:
            callback()


def test_frames_of_one_turn_leave_as_one_plainly_concatenated_message() -> None:
    turn = Turn()
    batcher = turn.batcher()
    for n in range(3):
        batcher.send(frame(n))
    assert turn.messages == []
    assert batcher.waiting_bytes == 3 * 14
    turn.end()
    assert turn.messages == [frame(0) + frame(1) + frame(2)]
    assert (batcher.frames, batcher.messages, batcher.bytes, batcher.waiting_bytes) == (3, 1, 42, 0)
    assert batcher.frames_per_message == 3.0


def test_the_seventeenth_frame_begins_a_second_message() -> None:
    turn = Turn()
    batcher = turn.batcher()
    for n in range(17):
        batcher.send(frame(n))
    assert [len(decode_frames(m)) for m in turn.messages] == [16]
    turn.end()
    assert [len(decode_frames(m)) for m in turn.messages] == [16, 1]
    assert batcher.frames_per_message == 8.5


def test_a_message_never_grows_beyond_64_kib() -> None:
    turn = Turn()
    batcher = turn.batcher()
    half = 32 * 1024 - 10
    batcher.send(frame(0, half))
    batcher.send(frame(1, half))
    assert turn.messages == []
    batcher.send(frame(2, 0))
    assert [len(m) for m in turn.messages] == [64 * 1024]
    turn.end()
    assert [len(m) for m in turn.messages] == [64 * 1024, 10]


def test_a_frame_over_the_cap_flushes_what_waits_and_goes_alone() -> None:
    turn = Turn()
    batcher = turn.batcher()
    large = frame(1, 64 * 1024 - 9)
    batcher.send(frame(0))
    batcher.send(large)
    batcher.send(frame(2))
    assert turn.messages == [frame(0), large]
    turn.end()
    assert turn.messages == [frame(0), large, frame(2)]


@pytest.mark.parametrize("payload", [frame(1) + frame(2), frame(1)[:-1], b"not a frame at all", b""])
def test_a_payload_that_is_not_exactly_one_frame_goes_alone(payload: bytes) -> None:
    turn = Turn()
    batcher = turn.batcher()
    batcher.send(frame(0))
    batcher.send(payload)
    batcher.send(frame(3))
    turn.end()
    assert turn.messages == [frame(0), payload, frame(3)]
    assert (batcher.frames, batcher.messages) == (2, 3)


def test_with_coalescing_off_every_frame_goes_at_once() -> None:
    turn = Turn()
    batcher = turn.batcher(coalesce=False)
    batcher.send(frame(0))
    batcher.send(frame(1))
    assert turn.messages == [frame(0), frame(1)]
    assert turn.scheduled == []


def test_flush_sends_now_and_the_end_of_the_turn_adds_nothing() -> None:
    turn = Turn()
    batcher = turn.batcher()
    batcher.send(frame(0))
    batcher.flush()
    batcher.flush()
    assert turn.messages == [frame(0)]
    turn.end()
    assert turn.messages == [frame(0)]


def test_close_sends_what_waits_first_and_then_refuses() -> None:
    turn = Turn()
    batcher = turn.batcher()
    batcher.send(frame(0))
    batcher.close()
    batcher.close()
    assert turn.messages == [frame(0)]
    for payload in (frame(1), b"junk"):
        with pytest.raises(LinkClosedError, match="closed"):
            batcher.send(payload)
    turn.end()
    assert turn.messages == [frame(0)]


def test_a_batcher_without_messages_reports_zero_frames_per_message() -> None:
    assert Turn().batcher().frames_per_message == 0.0


def test_caps_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FlowSendBatcher(print, max_frames=0)


async def test_the_running_loop_ends_the_turn_by_default() -> None:
    messages: list[bytes] = []
    batcher = FlowSendBatcher(lambda message: messages.append(bytes(message)))
    batcher.send(frame(0))
    batcher.send(frame(1))
    assert messages == []
    await asyncio.sleep(0)
    assert messages == [frame(0) + frame(1)]


@given(
    st.lists(
        st.one_of(
            st.integers(0, 200).map(lambda size: frame(1, size)),
            st.binary(max_size=30),
            st.sampled_from(["flush", "turn"]),
        ),
        max_size=60,
    ),
    st.booleans(),
)
def test_order_and_bytes_are_kept_whatever_is_sent(steps: list[bytes | str], coalesce: bool) -> None:
    turn = Turn()
    batcher = turn.batcher(max_frames=3, max_bytes=150, coalesce=coalesce)
    sent = b""
    for step in steps:
        if step == "flush":
            batcher.flush()
        elif isinstance(step, str):
            turn.end()
        else:
            batcher.send(step)
            sent += step
    batcher.close()
    assert b"".join(turn.messages) == sent
    assert batcher.bytes == len(sent)
    assert batcher.messages == len(turn.messages)


def test_a_frame_written_at_once_takes_what_waits_along_in_order() -> None:
    written: list[bytes] = []
    batcher = FlowSendBatcher(lambda message: written.append(bytes(message)), schedule=lambda callback: None)
    first, second, third = (Frame(0xAF20, n, Flags.FIN, b"x").pack() for n in range(3))
    batcher.write_frame(first)
    batcher.send_frame(second)
    batcher.write_frame(third)
    assert written == [first, second + third]
    assert (batcher.frames, batcher.messages, batcher.bytes, batcher.waiting_bytes) == (3, 2, 3 * len(first), 0)
    batcher.close()
    with pytest.raises(LinkClosedError):
        batcher.write_frame(first)
