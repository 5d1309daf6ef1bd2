"""The server's gate and the dialler: tokens, origins, HTTP, caps, servers that are none of ours."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.server import serve as websocket_serve
from websockets.exceptions import InvalidStatus

from aeonflow import LinkOptions, connect, station_key
from aeonflow import serve as serve_links
from aeonflow.bands import ATTN, CONTROL, EMBED, WEIGHTS, seed_stream
from aeonflow.errors import AuthenticationError, LinkClosedError, LocalProtocolError, NotForYouError

from .peers import TOKEN, WAIT_S, end_of, greeted, hello, serving, stranger

TRANSPORTS = ["websockets", "picows"]


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
        (b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * 4000 + b"\r\n") * 5, b"431"),
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
        assert server._rules.waiting == set()
        for _, one in [*idle, (reader, writer)]:
            one.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_that_never_says_hello_is_cut_off(transport: str) -> None:
    async with serving(transport, options=LinkOptions(handshake_s=0.1)) as (server, recorder):
        async with stranger(server.url) as client:
            code, reason = await end_of(client)
        assert code == 1008
        assert "no hello within 0.1 s" in reason
        assert recorder.links == []
        assert server._handshaking == set()


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
        ("ws://a..b:1", "labels of 1 to 63"),
        (f"ws://{'a' * 64}.example:1", "labels of 1 to 63"),
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


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_port_in_use_is_told_once(transport: str) -> None:
    async with serving(transport) as (server, _):
        with pytest.raises(LinkClosedError) as refused:
            await serve_links("127.0.0.1", server.port, hello=hello(), token=TOKEN, on_link=lambda link: None)
    assert str(refused.value) == f"cannot listen on 127.0.0.1:{server.port}: address already in use"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_proxies_of_the_environment_are_not_used(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "ws_proxy", "wss_proxy", "all_proxy", "socks_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with serving(transport) as (server, _):
        link = await connect(server.url, hello=hello("h", "host"), token=TOKEN, transport=transport)
        await link.close()
