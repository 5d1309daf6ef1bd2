"""Arbitrary bytes at an open link: it answers, drops, or closes with a protocol error, within bounds."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aeonflow import Flags, Frame, Link, LinkOptions, Message
from aeonflow.errors import AeonflowError, ProtocolError
from aeonflow.frames import Buffer
from aeonflow.messages import Goodbye, Heartbeat, Vent, decode_request, encode
from aeonflow.tensors import unpack_tensors
from aeonflow.transport.base import Receiver, Wire

from .peers import hello, limited

LIMIT = 2000


class Sink(Wire):
    """A wire that leads nowhere and remembers what was sent."""

    name = "sink"
    peer_url = "sink:"

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed: list[int] = []

    def start(self, receiver: Receiver) -> None: ...

    def send(self, message: Buffer) -> None:
        self.sent.append(bytes(message))

    @property
    def waiting_bytes(self) -> int:
        return 0

    def set_high_water(self, size_bytes: int) -> None: ...

    def close(self, code: int, reason: str) -> None:
        self.closed.append(code)

    def abort(self) -> None: ...


class Target:
    """An open link with handlers that decode what they are given, as real ones do."""

    def __init__(self) -> None:
        self.wire = Sink()
        self.closed: list[AeonflowError | None] = []
        self.link = Link(self.wire, limited(LIMIT), LinkOptions(), is_dialer=False)
        self.link.on_message = self.handle
        self.link.on_close = self.closed.append
        self.link.on_data(Frame(0, 0, Flags.FIN, encode(hello("fuzz", "host"))).pack())

    def handle(self, message: Message) -> None:
        assert len(message.payload) <= LIMIT
        if message.stream == 0xAF00:
            decode_request(message.payload)
        else:
            unpack_tensors(message.payload)

    def check(self) -> None:
        assert len(self.closed) <= 1
        assert len(self.closed) == len(self.wire.closed)
        assert self.link._assembler.partial_bytes <= LIMIT
        if self.closed and self.link.goodbye is None:
            assert isinstance(self.closed[0], ProtocolError)


proper = [hello(), Heartbeat(1, 0.5), Goodbye("gap", "x"), Vent("gap", "x")]
contents = st.one_of(st.binary(max_size=80), st.sampled_from([encode(content) for content in proper]))
frames = st.builds(
    lambda stream, sequence, flags, payload: Frame(stream, sequence, Flags(flags), payload).pack(),
    st.sampled_from([0, 0xAF00, 0xAF20, 0xAF62, 0xAF6E, 0x7777]),
    st.sampled_from([0, 1, 2, 0x8000_0000, 0x8000_0001]),
    st.sampled_from([0x10, 0x10, 0, 0x08, 0x18, 0x3F]),
    contents,
)
messages = st.one_of(st.binary(max_size=60), frames, st.lists(frames, max_size=4).map(b"".join))

fuzz = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@fuzz
@given(st.lists(messages, max_size=12))
def test_any_messages_leave_the_link_sound(received: list[bytes]) -> None:
    async def run() -> None:
        target = Target()
        for message in received:
            target.link.on_data(message)
        target.check()
        await asyncio.sleep(0)
        target.link._shut(None, "done", "")

    asyncio.run(run())


@fuzz
@given(st.lists(frames, min_size=1, max_size=6), st.integers(0, 10_000), st.integers(0, 255))
def test_mutated_messages_leave_the_link_sound(parts: list[bytes], where: int, value: int) -> None:
    async def run() -> None:
        target = Target()
        message = bytearray(b"".join(parts))
        message[where % len(message)] = value
        target.link.on_data(bytes(message))
        target.check()
        target.link._shut(None, "done", "")

    asyncio.run(run())


@pytest.mark.parametrize("announced", [LIMIT + 1, 0xFF_FFFF])
async def test_announced_sizes_reserve_no_memory(announced: int) -> None:
    target = Target()
    header = Frame(0xAF20, 1, Flags.FIN, b"").pack()[:7] + announced.to_bytes(3, "big")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        target.link.on_data(header)
        assert tracemalloc.get_traced_memory()[1] - before < 1 << 20
    finally:
        tracemalloc.stop()
    assert isinstance(target.closed[0], ProtocolError)
