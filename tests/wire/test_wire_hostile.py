"""Peers that break the rules, against servers of both transports: one connection ends, with the reason; others live."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import serve as websocket_serve
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from aeonflow import Flags, FrameDecoder, LinkOptions, Message, Server, connect, station_key
from aeonflow import serve as serve_links
from aeonflow.assembly import MAX_PARTIAL_MESSAGES, cut_message
from aeonflow.bands import ATTN, CONTROL, EMBED, WEIGHTS, seed_stream
from aeonflow.errors import (
    AeonflowError,
    AuthenticationError,
    BadMessageError,
    FrameTooLargeError,
    LinkClosedError,
    LocalProtocolError,
    NotForYouError,
    ProtocolError,
    UnknownStreamError,
    VersionMismatchError,
)
from aeonflow.frames import Frame
from aeonflow.link import read_vent
from aeonflow.messages import Goodbye, Heartbeat, decode_connection, decode_request, encode
from aeonflow.tensors import unpack_tensors

from .peers import TOKEN, WAIT_S, Recorder, end_of, hello, limited, serving, stranger

LIMIT = 200_000
TRANSPORTS = ["websockets", "picows"]
FIN, NO_FLAGS = Flags.FIN, Flags(0)


@pytest.fixture(params=TRANSPORTS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Server, Recorder]]:
    async with serving(request.param, hello=limited(LIMIT)) as pair:
        yield pair


def packed_hello(**fields: Any) -> bytes:
    return Frame(0, 0, FIN, encode(hello("stranger", "host", **fields))).pack()


async def greeted(client: ClientConnection) -> None:
    """Exchange hellos, so that what follows is judged as a message of an open link."""
    await client.send(packed_hello())
    await client.recv()


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


async def test_a_goodbye_before_hello_ends_the_connection(server: tuple[Server, Recorder]) -> None:
    async with stranger(server[0].url) as client:
        await client.send(Frame(0, 0, FIN, encode(Goodbye("done"))).pack())
        assert (await end_of(client))[0] == 1000
    assert server[0].refused_links == 1


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
            raise ProtocolError("the same epoch with another base")

        link.on_message = refuse
        await client.send(Frame(ATTN, 1, FIN).pack() + Frame(ATTN, 2, FIN).pack())
        assert await end_of(client) == (1002, "the same epoch with another base")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("client_transport", TRANSPORTS)
async def test_a_wrong_or_missing_token_is_401_on_loopback_too(transport: str, client_transport: str) -> None:
    async with serving(transport) as (server, recorder):
        with pytest.raises(AuthenticationError, match=r"HTTP 401.*not this fleet's"):
            await connect(server.url, hello=hello("h", "host"), token="wrong", transport=client_transport)
        with pytest.raises(InvalidStatus) as refused:
            await stranger(server.url, token=None)
        assert refused.value.response.status_code == 401
        assert refused.value.response.headers["WWW-Authenticate"] == "Bearer"
        assert server.links == set()
        assert recorder.closed == []


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_foreign_origin_is_403_and_a_listed_one_is_let_in(transport: str) -> None:
    async with serving(transport, allowed_origins=["https://ours.example"]) as (server, _):
        with pytest.raises(InvalidStatus) as refused:
            await stranger(server.url, Origin="https://evil.example")
        assert refused.value.response.status_code == 403
        async with stranger(server.url, Origin="https://ours.example") as client:
            await greeted(client)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_station_key_forwards_and_nothing_else(transport: str) -> None:
    async with serving(transport) as (server, recorder):
        link = await connect(server.url, hello=hello("other"), token=station_key(TOKEN), transport=transport)
        link.send(ATTN, 1, b"forwarded")
        link.send(seed_stream(1, 1), 2, b"seed")
        await recorder.count(2)
        for stream in (CONTROL, EMBED, WEIGHTS, 0x7777):
            with pytest.raises(NotForYouError, match="permits forwarding only"):
                await link.call(stream, b"", timeout_s=WAIT_S)
        (at_server,) = server.links
        assert at_server.permission == "forward"
        await link.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n", b"405|400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n", b"426|400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"401"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000, b"431"),
        (b"\x16\x03\x01 not http at all\r\n\r\n", b""),
    ],
)
async def test_what_is_no_upgrade_gets_an_http_answer_and_is_closed(
    transport: str, request_bytes: bytes, status: bytes
) -> None:
    async with serving(transport) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_bytes.replace(b"%b", TOKEN.encode()))
        async with asyncio.timeout(WAIT_S):
            try:
                answer = await reader.read()
            except ConnectionResetError:
                answer = b""
        assert answer.startswith(b"HTTP/1.1 ") or not status
        assert not status or answer.split(b" ")[1] in status.split(b"|")
        writer.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_connections_that_say_nothing_are_capped_and_cut_off_in_time(transport: str) -> None:
    options = LinkOptions(handshake_s=0.3)
    async with serving(transport, options=options, max_unauthenticated=3) as (server, _):
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(WAIT_S):
            answer = await reader.read()
            assert b" 503 " in answer
            assert b"3 connections wait" in answer
            for one, _ in idle:
                with suppress(ConnectionResetError):
                    assert await one.read() == b""
        assert server.num_unauthenticated == 0
        for _, one in [*idle, (reader, writer)]:
            one.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_that_never_says_hello_is_cut_off(transport: str) -> None:
    async with serving(transport, options=LinkOptions(handshake_s=0.1)) as (server, _):
        async with stranger(server.url) as client:
            code, reason = await end_of(client)
        assert code == 1008
        assert "no hello within 0.1 s" in reason
        assert server.refused_links == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_takes_no_more_links_than_it_may(transport: str) -> None:
    async with serving(transport, max_links=1) as (server, _):
        link = await connect(server.url, hello=hello("h", "host"), token=TOKEN, transport=transport)
        with pytest.raises(LinkClosedError, match=r"HTTP 503.*no more connections"):
            await connect(server.url, hello=hello("h", "host"), token=TOKEN, transport=transport)
        await link.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_redirects_are_not_followed(transport: str) -> None:
    def redirect(connection: Any, request: Any) -> Any:
        response = connection.respond(302, "elsewhere")
        response.headers["Location"] = "ws://127.0.0.1:1/"
        return response

    async with websocket_serve(lambda ws: ws.wait_closed(), "127.0.0.1", 0, process_request=redirect) as elsewhere:
        port = elsewhere.sockets[0].getsockname()[1]
        with pytest.raises(LinkClosedError, match="302: redirects are not followed"):
            await connect(f"ws://127.0.0.1:{port}", hello=hello("h", "host"), token=TOKEN, transport=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no WebSocket answers|closed during"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", "HTTP 404"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "no WebSocket"),
        (b"", "closed during the handshake|no WebSocket answers"),
    ],
)
async def test_servers_that_are_none_of_ours_are_told_apart(transport: str, answer: bytes, message: str) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    other = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(LinkClosedError, match=message):
            await connect(f"ws://127.0.0.1:{port}", hello=hello("h", "host"), token=TOKEN, transport=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_that_accepts_and_says_nothing_is_given_up_in_time(transport: str) -> None:
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
    async with silent:
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(LinkClosedError, match=r"no answer to the handshake within 0.1 s"):
            await connect(
                f"ws://127.0.0.1:{port}",
                hello=hello("h", "host"),
                token=TOKEN,
                transport=transport,
                options=LinkOptions(handshake_s=0.1),
            )
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nobody_listening_is_a_refused_connection(transport: str) -> None:
    async with serving(transport) as (server, _):
        url = server.url
    with pytest.raises(LinkClosedError, match=r"cannot connect: connection refused"):
        await connect(url, hello=hello("h", "host"), token=TOKEN, transport=transport)


async def test_a_port_in_use_is_named() -> None:
    async with serving() as (server, _):
        with pytest.raises(LinkClosedError, match=f"cannot listen on 127.0.0.1:{server.port}: .*in use"):
            await serve_links("127.0.0.1", server.port, hello=hello(), token=TOKEN, on_link=lambda link: None)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "scheme must be ws or wss"),
        ("ws://", "host"),
        ("ws://user:pass@127.0.0.1:1", "a user or a fragment"),
        ("ws://user@[::1", "not a URL"),
        ("ws://127.0.0.1:1/#x", "a user or a fragment"),
        ("ws://127.0.0.1:99999", "not a URL"),
        ("ws://höst:1", "host in ASCII"),
    ],
)
async def test_urls_that_make_no_sense_are_refused_without_dialling(url: str, message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        await connect(url, hello=hello("h", "host"), token=TOKEN)


async def test_tls_options_without_wss_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="wss"):
        await connect("ws://127.0.0.1:1", hello=hello("h", "host"), token=TOKEN, ssl=ssl.create_default_context())


async def test_binding_beyond_loopback_without_tls_needs_to_be_asked_for() -> None:
    with pytest.raises(LocalProtocolError, match=r"0.0.0.0:0 is not loopback.*insecure"):
        await serve_links("0.0.0.0", 0, hello=hello(), token=TOKEN, on_link=lambda link: None)


async def test_our_own_client_is_told_when_it_sends_too_much(server: tuple[Server, Recorder]) -> None:
    link = await connect(server[0].url, hello=hello("h", "host"), token=TOKEN, transport="websockets")
    gone = Recorder()
    gone.attach(link)
    (huge,) = cut_message(ATTN, 1, bytes(LIMIT + 1), max_message_bytes=LIMIT + 1)
    link._batcher.send_frame(huge)  # past the check that send() makes
    error = await gone.closing()
    assert isinstance(error, FrameTooLargeError | LinkClosedError)
    assert "1009" in str(error) or "200,0" in str(error)
