"""Peers that break the rules, against servers of both transports: one connection ends, with the reason; others live."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosedError

from aeonflow import Flags, FrameDecoder, LinkOptions, Message, Server, connect
from aeonflow.assembly import MAX_PARTIAL_MESSAGES, cut_message
from aeonflow.bands import ATTN, CONTROL, seed_stream
from aeonflow.errors import (
    AeonflowError,
    BadMessageError,
    FrameTooLargeError,
    LinkClosedError,
    OverloadedError,
    ProtocolError,
    UnknownStreamError,
    VersionMismatchError,
)
from aeonflow.frames import Frame
from aeonflow.messages import Goodbye, Heartbeat, decode_connection, decode_request, encode
from aeonflow.tensors import unpack_tensors
from aeonflow.vents import read_vent

from .peers import TOKEN, WAIT_S, Recorder, end_of, greeted, hello, limited, packed_hello, serving, stranger

LIMIT = 200_000
TRANSPORTS = ["websockets", "picows"]
FIN, NO_FLAGS = Flags.FIN, Flags(0)


@pytest.fixture(params=TRANSPORTS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Server, Recorder]]:
    async with serving(request.param, hello=limited(LIMIT)) as pair:
        yield pair


async def frames_of(client: ClientConnection) -> list[Frame]:
    """Everything the server still says before it closes."""
    frames: list[Frame] = []
    with suppress(ConnectionClosedError):
        async with asyncio.timeout(WAIT_S):
            async for message in client:
                assert isinstance(message, bytes)
                frames += FrameDecoder().feed(message)
    return frames


async def vent_of(client: ClientConnection) -> AeonflowError:
    async with asyncio.timeout(WAIT_S):
        while True:
            message = await client.recv()
            assert isinstance(message, bytes)
            for frame in FrameDecoder().feed(message):
                if frame.flags & Flags.VENT:
                    return read_vent(Message(frame.stream_id, frame.sequence, frame.flags, frame.payload))


async def assert_serves(server: Server) -> None:
    """A well-behaved client is served: the process and its other connections are unharmed."""
    good = await connect(server.url, hello=hello("good", "host"), token=TOKEN, transport="websockets")
    (link,) = [link for link in server.links if link.remote.name == "good"]
    link.on_message = lambda m: link.send(m.stream, m.sequence, m.payload)
    assert (await good.call(ATTN, b"still here", timeout_s=WAIT_S)).payload == b"still here"
    await good.close()


BROKEN = {
    "reserved flags": (bytes.fromhex("af20 00000001 40 000001 78"), 1002, "reserved"),
    "half a header": (bytes.fromhex("af20 0000"), 1002, "4 of 10 header bytes"),
    "a truncated payload": (bytes.fromhex("af20 00000001 10 000005 31323334"), 1002, "4 of 5 payload bytes"),
    "a frame and a byte": (bytes.fromhex("af20 00000001 10 000001 78 00"), 1002, "ends inside frame 2"),
    "an empty message": (b"", 1002, "empty message"),
    "a pickle": (pickle.dumps({"code": os.system}), 1002, "reserved|ends inside|announces"),
    "an announced giant": (bytes.fromhex("af20 00000001 10 ffffff"), 1009, "16,777,215 bytes, allowed are 200,000"),
    "one byte over the limit": (Frame(ATTN, 1, FIN, bytes(LIMIT + 1)).pack(), 1009, "200,?0[01]1"),
    "a second hello": (packed_hello(), 1002, "second hello"),
    "nonsense on stream 0000": (Frame(0, 0, FIN, b"\xc1\xc1").pack(), 1002, "stream 0000"),
    "a pickle on stream 0000": (Frame(0, 0, FIN, pickle.dumps(os.system)).pack(), 1002, "stream 0000"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_broken_rules_close_one_connection_with_the_reason(server: tuple[Server, Recorder], case: str) -> None:
    listening, recorder = server
    message, code, reason = BROKEN[case]
    async with stranger(listening.url) as client:
        await greeted(client)
        await recorder.link()
        await client.send(message)
        said = await frames_of(client)
        found_code, found_reason = await end_of(client)
    assert found_code == code
    goodbyes = [decode_connection(f.payload) for f in said if f.stream_id == 0]
    words = " ".join([found_reason, *(g.reason for g in goodbyes if isinstance(g, Goodbye))])
    assert re.search(reason, words), words
    error = await recorder.closing()
    assert isinstance(error, ProtocolError)
    assert recorder.messages == []
    await assert_serves(listening)


async def test_a_text_message_closes_with_1003(server: tuple[Server, Recorder]) -> None:
    listening, recorder = server
    async with stranger(listening.url) as client:
        await greeted(client)
        await client.send("text")
        assert await end_of(client) == (1003, "text message: only binary messages are allowed")
    assert isinstance(await recorder.closing(), ProtocolError)


async def test_fragmented_text_closes_with_1003(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        await client.send(["te", "xt"])
        assert (await end_of(client))[0] == 1003


async def test_fragments_of_a_websocket_message_are_one_message(server: tuple[Server, Recorder]) -> None:
    listening, recorder = server
    message = Frame(ATTN, 1, FIN, bytes(1000)).pack() + Frame(ATTN, 2, FIN, b"second").pack()
    async with stranger(listening.url) as client:
        await greeted(client)
        await client.send([message[:1], message[1:700], b"", message[700:]])
        received = await recorder.count(2)
        assert [(m.sequence, len(m.payload)) for m in received] == [(1, 1000), (2, 6)]


async def test_fragments_are_bounded_together(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        await server[1].link()
        await client.send([bytes(LIMIT // 2)] * 3)
        assert (await end_of(client))[0] == 1009
    assert isinstance(await server[1].closing(), ProtocolError)


async def test_a_message_at_the_limit_is_taken(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        await client.send(Frame(ATTN, 1, FIN, bytes(LIMIT)).pack())
        assert len((await server[1].count(1))[0].payload) == LIMIT


async def test_a_message_over_the_limit_in_small_frames_is_stopped_at_the_limit(
    server: tuple[Server, Recorder],
) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        for _ in range(LIMIT // 50_000):
            await client.send(Frame(ATTN, 1, NO_FLAGS, bytes(50_000)).pack())
        await client.send(Frame(ATTN, 1, FIN, b"x").pack())
        assert (await end_of(client))[0] == 1009


async def test_messages_that_never_end_are_bounded_in_number(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        await client.send(b"".join(Frame(ATTN, n, NO_FLAGS).pack() for n in range(MAX_PARTIAL_MESSAGES + 1)))
        assert (await end_of(client))[0] == 1002


async def test_pings_are_answered_with_their_payload(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        async with asyncio.timeout(WAIT_S):
            await (await client.ping(b"are you there"))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_flood_of_pings_whose_answers_nobody_reads_is_bounded(transport: str) -> None:
    async with serving(transport, options=LinkOptions(max_outbound_bytes=1 << 20)) as (server, recorder):
        async with stranger(server.url) as client:
            await greeted(client)
            client.transport.pause_reading()
            ping = b"\x89\xfd\0\0\0\0" + bytes(125)  # masked with zeros
            async with asyncio.timeout(WAIT_S):
                while not recorder.closed:
                    client.transport.write(ping * 2000)
                    await asyncio.sleep(0)
            client.transport.abort()
        assert isinstance(await recorder.closing(), OverloadedError)


async def test_a_close_frame_is_answered_and_told_with_its_code(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        await client.close(4001, "enough")
    error = await server[1].closing()
    assert isinstance(error, LinkClosedError)
    assert "4001 enough" in str(error)


async def test_reserved_bits_of_websocket_frames_close_the_connection(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        client.transport.write(bytes([0xC2, 0x80, 0, 0, 0, 0]))
        assert (await end_of(client))[0] == 1002


@pytest.mark.parametrize("bits", [b"\x80\x80\0\0\0\0", b"\x02\x81\0\0\0\0x\x82\x81\0\0\0\0x"])
async def test_fragments_out_of_order_close_the_connection(server: tuple[Server, Recorder], bits: bytes) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        client.transport.write(bits)
        assert (await end_of(client))[0] == 1002


@pytest.mark.parametrize("first", [Frame(ATTN, 1, FIN, b"x"), Frame(0, 0, FIN, encode(Heartbeat()))])
async def test_anything_before_hello_closes_the_connection(server: tuple[Server, Recorder], first: Frame) -> None:
    listening, recorder = server
    async with stranger(listening.url) as client:
        await client.send(first.pack())
        code, reason = await end_of(client)
    assert code == 1002
    assert "first frame must be a hello" in reason
    assert recorder.messages == []
    assert listening.links == set()


@pytest.mark.parametrize("stream", [0, ATTN])
async def test_a_message_that_does_not_end_is_no_hello_from_its_first_frame_on(
    server: tuple[Server, Recorder], stream: int
) -> None:
    listening, recorder = server
    async with stranger(listening.url) as client:
        await client.send(Frame(stream, 1, NO_FLAGS, b"x").pack())
        code, reason = await end_of(client)
    assert code == 1002  # at once: 1008 would be the end of the handshake's time
    assert "before hello" in reason
    assert recorder.links == []
    assert listening._handshaking == set()


async def test_a_goodbye_before_hello_ends_the_connection(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await client.send(Frame(0, 0, FIN, encode(Goodbye("done"))).pack())
        assert (await end_of(client))[0] == 1000
    assert server[1].links == []
    assert server[0]._handshaking == set()


async def test_frames_behind_hello_in_the_same_message_are_delivered(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await client.send(packed_hello() + Frame(ATTN, 1, FIN, b"eager").pack())
        assert (await server[1].count(1))[0].payload == b"eager"


async def test_another_protocol_version_is_told_both_versions(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await client.send(packed_hello(protocol=99, software="aeonflow 9"))
        code, reason = await end_of(client)
    assert code == 1008
    assert "speaks 1" in reason
    assert "speaks 99" in reason
    with pytest.raises(VersionMismatchError, match=r"speaks 99 .*speaks 1 "):
        await connect(server[0].url, hello=hello("new", "host", protocol=99), token=TOKEN, transport="websockets")


async def test_another_model_is_refused_with_both_fingerprints() -> None:
    async with serving(hello=hello(fingerprint="model-b")) as (server, _):
        with pytest.raises(VersionMismatchError, match=r"model-a.*model-b"):
            await connect(server.url, hello=hello("h", "host", fingerprint="model-a"), token=TOKEN)
        assert server.links == set()


async def test_limits_of_nothing_are_refused(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await client.send(Frame(0, 0, FIN, encode(limited(0))).pack())
        assert (await end_of(client))[0] == 1002


async def test_a_control_message_that_does_not_decode_vents_the_call(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        link = await server[1].link()
        link.on_message = lambda m: decode_request(m.payload) and None
        await client.send(Frame(CONTROL, 1, FIN, pickle.dumps(os.system)).pack())
        assert type(await vent_of(client)) is BadMessageError
        assert not link.is_closed


async def test_absurd_shapes_vent_the_call_and_the_connection_lives(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        link = await server[1].link()
        link.on_message = lambda m: unpack_tensors(m.payload) and None
        for ndim, dim0, dim1, dtype in ((255, 1, 1, 0), (2, 0, 1, 0), (2, 0xFFFFFFFF, 0xFFFFFFFF, 0), (2, 1, 1, 99)):
            prefix = struct.pack("<QIIIIHHBBBBIHHII", 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, dtype, 0, 0, ndim, dim0, dim1)
            await client.send(Frame(ATTN, 1, FIN, prefix).pack())
            assert (await vent_of(client)).code == "bad_tensor"
        assert not link.is_closed


async def test_a_bug_in_a_handler_vents_the_call_without_its_details(
    server: tuple[Server, Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        link = await server[1].link()
        link.on_message = lambda m: {}["a secret key"]
        await client.send(Frame(ATTN, 1, FIN).pack())
        error = await vent_of(client)
        assert error.code == "internal"
        assert "KeyError" in str(error)
        assert "secret" not in str(error)
        assert not link.is_closed
    assert "handler of stream af20 failed" in caplog.text


async def test_bad_seeds_and_vents_are_counted_and_never_answered(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        link = await server[1].link()
        link.accepted_streams = {ATTN}
        await client.send(Frame(seed_stream(1, 0), 1, NO_FLAGS, b"junk").pack() + Frame(0x7777, 1, Flags.VENT).pack())
        await client.send(Frame(0x7777, 2, FIN).pack())
        assert type(await vent_of(client)) is UnknownStreamError
        assert link.stats.dropped == 2
        assert link.stats.vented == 1


async def test_a_protocol_error_of_a_handler_closes_the_connection(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await greeted(client)
        link = await server[1].link()

        def refuse(message: Message) -> None:
            raise ProtocolError("a rule was broken")

        link.on_message = refuse
        await client.send(Frame(ATTN, 1, FIN).pack() + Frame(ATTN, 2, FIN).pack())
        assert await end_of(client) == (1002, "a rule was broken")


async def test_our_own_client_is_told_when_it_sends_too_much(server: tuple[Server, Recorder]) -> None:
    link = await connect(server[0].url, hello=hello("h", "host"), token=TOKEN, transport="websockets")
    gone = Recorder()
    gone.attach(link)
    (huge,) = cut_message(ATTN, 1, bytes(LIMIT + 1), max_message_bytes=LIMIT + 1)
    link._batcher.send_frame(huge)  # past the check that send() makes
    error = await gone.closing()
    assert isinstance(error, FrameTooLargeError | LinkClosedError)
    assert "1009" in str(error) or "200,0" in str(error)
