"""Frames that are whole messages, beside the library's own reading and writing of the same bytes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from aeonflow.errors import AeonflowError
from aeonflow.transport.websocket import WebSocketWire
from aeonflow.transport.whole_frames import WholeWriter, frame_bytes, read_whole

LIMIT = 1 << 17
SIZES = st.sampled_from([2, 10, 125, 126, 127, 2352, 65_535, 65_536, 70_000])


class Socket:
    """What a wire needs of a transport; what is written is kept."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def nothing(self, *args: Any, **options: Any) -> None:
        return None

    pause_reading = resume_reading = set_write_buffer_limits = write_eof = close = abort = nothing

    def can_write_eof(self) -> bool:
        return True


class Taken:
    """A receiver that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.faults: list[AeonflowError] = []

    def on_data(self, message: bytes) -> None:
        self.messages.append(bytes(message))

    def on_fault(self, error: AeonflowError, close_code: int) -> None:
        self.faults.append(error)

    def on_lost(self, error: AeonflowError | None) -> None:
        return None

    def on_congested(self) -> None:
        return None

    on_writable = on_congested


@given(size=SIZES, is_masked=st.booleans(), seed=st.integers(0, 99))
def test_what_the_library_writes_is_read_whole_and_the_other_way_round(size: int, is_masked: bool, seed: int) -> None:
    payload = random.Random(seed).randbytes(size)
    written = Frame(Opcode.BINARY, payload).serialize(mask=is_masked)
    assert len(written) == frame_bytes(size, is_masked=is_masked)
    assert read_whole(written, LIMIT, is_masked=is_masked) == (payload if size <= 65_535 else None)
    core = Protocol(Side.SERVER if is_masked else Side.CLIENT, max_size=LIMIT)
    core.receive_data(WholeWriter(is_masked=is_masked).write(memoryview(payload)))
    (frame,) = core.events_received()
    assert isinstance(frame, Frame)
    assert (frame.opcode, frame.fin, bytes(frame.data)) == (Opcode.BINARY, True, payload)


@pytest.mark.parametrize("is_masked", [False, True])
def test_what_is_not_exactly_one_plain_frame_is_left_to_the_library(is_masked: bool) -> None:
    def written(opcode: Opcode = Opcode.BINARY, size: int = 300, **bits: bool) -> bytes:
        return Frame(opcode, bytes(size), **bits).serialize(mask=is_masked)

    plain = written()
    assert read_whole(plain, 300, is_masked=is_masked) == bytes(300)
    odd = [
        b"", plain[:1], plain[:3], plain[:-1], plain + b"\0", plain + plain, written(fin=False), written(Opcode.TEXT),
        written(Opcode.CONT), written(Opcode.PING, 5), written(Opcode.CLOSE, 2), bytes([plain[0] | 0x40]) + plain[1:],
        Frame(Opcode.BINARY, bytes(300)).serialize(mask=not is_masked),
    ]  # fmt: skip
    for data in odd:
        assert read_whole(data, 1 << 20, is_masked=is_masked) is None, data[:8]
    assert read_whole(plain, 299, is_masked=is_masked) is None, "one byte beyond the limit"


def test_no_two_frames_have_one_mask() -> None:
    write = WholeWriter(is_masked=True).write
    masks = {write(b"x" * 10)[2:6] for _ in range(3000)}
    assert len(masks) > 2990, "four random bytes each"


@pytest.mark.parametrize("side", [Side.SERVER, Side.CLIENT])
@pytest.mark.parametrize("seed", range(10))
async def test_messages_come_whole_however_the_stream_is_cut(side: Side, seed: int) -> None:
    rng = random.Random(seed)
    socket, taken = Socket(), Taken()
    wire = WebSocketWire(Protocol(side, max_size=LIMIT), socket, "ws://peer", [], 0, LIMIT)  # type: ignore[arg-type]
    wire.start(taken)
    await asyncio.sleep(0)
    sent: list[bytes] = []
    pieces: list[bytes] = []
    pings = 0
    for _ in range(200):
        payload = rng.randbytes(rng.choice([1, 40, 125, 126, 2000]))
        frames = [Frame(Opcode.BINARY, payload)]
        if rng.random() < 0.15:
            at = rng.randrange(len(payload))
            frames = [Frame(Opcode.BINARY, payload[:at], fin=False), Frame(Opcode.CONT, payload[at:])]
        if rng.random() < 0.1:
            frames.insert(rng.randint(0, len(frames)), Frame(Opcode.PING, b"still there"))
            pings += 1
        sent.append(payload)
        pieces += [frame.serialize(mask=side is Side.SERVER) for frame in frames]
    while pieces:
        read = pieces.pop(0)
        if rng.random() < 0.2 and pieces:
            read += pieces.pop(0)
        at = rng.randrange(1, len(read)) if rng.random() < 0.2 and len(read) > 1 else len(read)
        for part in (read[:at], read[at:]):
            if part:
                wire.data_received(part)
    assert taken.messages == sent
    assert taken.faults == []
    assert socket.written.count(b"still there") == pings or side is Side.CLIENT, "a client's pongs are masked"


async def test_a_fragment_in_the_middle_of_a_message_is_a_fault_as_the_library_has_it() -> None:
    core = Protocol(Side.SERVER, max_size=LIMIT)
    taken = Taken()
    wire = WebSocketWire(core, Socket(), "ws://peer", [], 0, LIMIT)  # type: ignore[arg-type]
    wire.start(taken)
    await asyncio.sleep(0)
    wire.data_received(Frame(Opcode.BINARY, b"half", fin=False).serialize(mask=True))
    wire.data_received(Frame(Opcode.BINARY, b"another message").serialize(mask=True))
    assert taken.messages == []
    assert core.parser_exc is not None
