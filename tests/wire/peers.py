"""What the wire's tests share: hellos, link pairs on every transport, and clients that do not keep the rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect

from aeonflow import Flags, Frame, Hello, Limits, Link, LinkOptions, Message, Server, connect, memory_pair, serve
from aeonflow.errors import AeonflowError
from aeonflow.messages import PROTOCOL_VERSION, encode

TOKEN = "a-secret-for-these-tests"
WAIT_S = 10.0  # bound of every wait in these tests; none is expected to come near it
CALM = LinkOptions(heartbeat_s=600, suspected_s=600, silence_s=600)  # no beat disturbs what a test counts
QUICK = LinkOptions(handshake_s=WAIT_S, heartbeat_s=0.02, suspected_s=0.05, silence_s=0.15)

SOCKET_PAIRS = [(c, s) for c in ("websockets", "picows") for s in ("websockets", "picows")]
ALL_PAIRS = [("memory", "memory"), *SOCKET_PAIRS]

VECTORS = Path(__file__).parent / "vectors"


def vectors(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


def hello(name: str = "station", kind: str = "station", **fields: Any) -> Hello:
    return Hello(protocol=fields.pop("protocol", PROTOCOL_VERSION), name=name, kind=kind, **fields)


def limited(max_message_bytes: int, **fields: Any) -> Hello:
    return hello(limits=Limits(max_message_bytes=max_message_bytes), **fields)


class Recorder:
    """A handler that keeps what it is given and lets a test wait for it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.closed: list[AeonflowError | None] = []
        self.links: list[Link] = []
        self._changed = asyncio.Event()

    def attach(self, link: Link) -> Link:
        link.on_message = self.on_message
        link.on_close = self.on_close
        self.links.append(link)
        self._changed.set()
        return link

    def on_message(self, message: Message) -> None:
        self.messages.append(message)
        self._changed.set()

    def on_close(self, error: AeonflowError | None) -> None:
        self.closed.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def link(self) -> Link:
        """The first link that was attached, once it has come."""
        await self.until(lambda: bool(self.links))
        return self.links[0]

    async def count(self, messages: int) -> list[Message]:
        await self.until(lambda: len(self.messages) >= messages)
        return self.messages

    async def closing(self) -> AeonflowError | None:
        await self.until(lambda: bool(self.closed))
        return self.closed[0]


class Pair:
    """A client's link and the server's link of one connection, each with its recorder."""

    def __init__(self) -> None:
        self.at_client = Recorder()
        self.at_server = Recorder()
        self.client: Link
        self.server: Link


@asynccontextmanager
async def linked(
    transports: tuple[str, str],
    *,
    client_hello: Hello | None = None,
    server_hello: Hello | None = None,
    **options: Any,
) -> AsyncIterator[Pair]:
    """A connected pair over (client transport, server transport); both ends are gone afterwards."""
    pair = Pair()
    options.setdefault("options", CALM)
    client_hello = client_hello or hello("host", "host")
    server_hello = server_hello or hello()
    if transports[0] == "memory":
        pair.client, pair.server = await memory_pair(client_hello, server_hello, **options)
        pair.at_client.attach(pair.client)
        pair.at_server.attach(pair.server)
        try:
            yield pair
        finally:
            await pair.client.close()
            await pair.server.close()
        return
    arrived: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
    server = await serve(
        "127.0.0.1",
        0,
        hello=server_hello,
        token=TOKEN,
        transport=transports[1],
        on_link=lambda link: arrived.set_result(pair.at_server.attach(link)),
        **options,
    )
    try:
        pair.client = await connect(
            server.url,
            hello=client_hello,
            token=TOKEN,
            transport=transports[0],
            on_message=pair.at_client.on_message,
            on_close=pair.at_client.on_close,
            **options,
        )
        pair.server = await asyncio.wait_for(arrived, WAIT_S)
        try:
            yield pair
        finally:
            await pair.client.close()
    finally:
        await server.close()


@asynccontextmanager
async def serving(transport: str = "websockets", **options: Any) -> AsyncIterator[tuple[Server, Recorder]]:
    """A server whose links are recorded; `options` go to `serve`."""
    recorder = Recorder()
    options = {"hello": hello(), "token": TOKEN, "on_link": recorder.attach, "transport": transport, **options}
    server = await serve("127.0.0.1", 0, **options)
    try:
        yield server, recorder
    finally:
        await server.close()


def stranger(url: str, token: str | None = TOKEN, **headers: str) -> websocket_connect:
    """A plain WebSocket client of another library's making, which says what the test lets it say."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return websocket_connect(url, additional_headers=headers, compression=None, max_size=None, proxy=None)


def packed_hello(**fields: Any) -> bytes:
    return Frame(0, 0, Flags.FIN, encode(hello("stranger", "host", **fields))).pack()


async def greeted(client: ClientConnection) -> None:
    """Exchange hellos, so that what follows is judged as a message of an open link."""
    await client.send(packed_hello())
    await client.recv()


async def end_of(client: ClientConnection) -> tuple[int | None, str]:
    """Close code and reason after the server has closed."""
    async with asyncio.timeout(WAIT_S):
        await client.wait_closed()
    return client.close_code, client.close_reason or ""


def transport_of(link: Link) -> asyncio.Transport:
    """The socket transport beneath a link: what a network can do to it is done there."""
    wire: Any = link._wire
    transport: asyncio.Transport = wire._transport
    return transport


def hold_up_reading(pair: Pair) -> None:
    """The server reads nothing more."""
    wire: Any = pair.server._wire
    if wire.name == "memory":
        wire._schedule = lambda: None
    else:
        transport_of(pair.server).pause_reading()


def read_again(pair: Pair) -> None:
    """The server takes what has piled up."""
    wire: Any = pair.server._wire
    if wire.name == "memory":
        del wire._schedule
        wire._schedule()
    elif not transport_of(pair.server).is_closing():
        transport_of(pair.server).resume_reading()
