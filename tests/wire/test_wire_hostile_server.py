"""Servers that break the rules, against clients of both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as websocket_serve

from aeonflow import Flags, Frame, Link, LinkOptions, connect
from aeonflow.bands import ATTN
from aeonflow.errors import (
    AeonflowError,
    LinkClosedError,
    OversizeError,
    ProtocolError,
    RemoteProtocolError,
    VersionMismatchError,
)
from aeonflow.messages import encode

from .peers import TOKEN, WAIT_S, Recorder, hello, limited

TRANSPORTS = ["websockets", "picows"]
LIMIT = 200_000
Behaviour = Callable[[ServerConnection], Awaitable[None]]
HELLO = Frame(0, 0, Flags.FIN, encode(hello("strange"))).pack()


@asynccontextmanager
async def strange_server(behaviour: Behaviour) -> AsyncIterator[str]:
    """A plain WebSocket server that does what the test says and then waits for the end."""

    async def handle(connection: ServerConnection) -> None:
        await behaviour(connection)
        async for _ in connection:
            pass

    async with websocket_serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def dial(url: str, transport: str, recorder: Recorder) -> Link:
    return await connect(
        url,
        hello=limited(LIMIT, name="h", kind="host"),
        token=TOKEN,
        transport=transport,
        on_message=recorder.on_message,
        on_close=recorder.on_close,
        options=LinkOptions(heartbeat_s=600, silence_s=600),
    )


async def end_with(transport: str, behaviour: Behaviour) -> AeonflowError | None:
    """How a link ends whose server greets properly and then behaves so."""
    recorder = Recorder()

    async def greet_then(connection: ServerConnection) -> None:
        await connection.send(HELLO)
        await connection.recv()
        await behaviour(connection)

    async with strange_server(greet_then) as url:
        await dial(url, transport, recorder)
        error = await recorder.closing()
        assert len(recorder.closed) == 1
        assert recorder.messages == []
        return error


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_frames_that_come_with_the_handshake_are_delivered_after_it(transport: str) -> None:
    async def eager(connection: ServerConnection) -> None:
        await connection.send(HELLO)
        for n in range(20):
            await connection.send(Frame(ATTN, n, Flags.FIN, bytes(n)).pack())

    recorder = Recorder()
    async with strange_server(eager) as url:
        link = await dial(url, transport, recorder)
        received = await recorder.count(20)
        assert [len(message.payload) for message in received] == list(range(20))
        await link.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_message_one_byte_over_the_clients_limit_ends_the_link(transport: str) -> None:
    async def oversize(connection: ServerConnection) -> None:
        await connection.send(Frame(ATTN, 1, Flags.FIN, bytes(LIMIT + 1)).pack())

    error = await end_with(transport, oversize)
    assert isinstance(error, OversizeError)
    assert "200011" in str(error)
    assert "200010" in str(error)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nothing_counts_after_a_fault(transport: str) -> None:
    async def fault_then_more(connection: ServerConnection) -> None:
        good = Frame(ATTN, 1, Flags.FIN, b"good").pack()
        masked = bytes([0x82, 0x80 | len(good), 0, 0, 0, 0]) + good  # a server must not mask
        connection.transport.write(masked + bytes([0x82, len(good)]) + good)
        connection.transport.write(bytes([0x82, len(good)]) + good)

    assert isinstance(await end_with(transport, fault_then_more), RemoteProtocolError)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_text_from_a_server_ends_the_link(transport: str) -> None:
    async def text(connection: ServerConnection) -> None:
        await connection.send("text")

    error = await end_with(transport, text)
    assert isinstance(error, ProtocolError)
    assert "text message" in str(error)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_text_instead_of_hello_fails_the_dialler(transport: str) -> None:
    async def text(connection: ServerConnection) -> None:
        await connection.send("text")

    async with strange_server(text) as url:
        with pytest.raises(ProtocolError, match="text message"):
            await dial(url, transport, Recorder())


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_of_another_version_is_named_with_both_versions(transport: str) -> None:
    async def of_later(connection: ServerConnection) -> None:
        await connection.send(Frame(0, 0, Flags.FIN, encode(hello("later", protocol=2))).pack())

    async with strange_server(of_later) as url:
        with pytest.raises(VersionMismatchError, match=r"speaks 1 .*speaks 2 "):
            await dial(url, transport, Recorder())


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_that_closes_instead_of_hello_fails_the_dialler_with_its_reason(transport: str) -> None:
    async def close(connection: ServerConnection) -> None:
        await connection.close(1013, "come back later")

    async with strange_server(close) as url:
        with pytest.raises(LinkClosedError, match="1013 come back later"):
            await dial(url, transport, Recorder())


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_that_never_answers_our_close_is_left_behind(transport: str) -> None:
    async def deaf(connection: ServerConnection) -> None:
        await connection.send(HELLO)
        connection.transport.pause_reading()
        await gone.wait()
        connection.transport.resume_reading()

    gone = asyncio.Event()
    recorder = Recorder()
    async with strange_server(deaf) as url:
        link = await dial(url, transport, recorder)
        async with asyncio.timeout(WAIT_S):
            await link.close()
        assert recorder.closed == [None]
        gone.set()
