"""Round trips against an echo in another process: over an aeonflow link, and over the bare libraries."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence

from aeonflow import Hello, Link, Message
from aeonflow.bands import EMBED
from aeonflow.messages import PROTOCOL_VERSION

LIBRARIES = ("websockets", "picows")
START_TIMEOUT_S = 20.0
ROUND_TRIPS_TIMEOUT_S = 60.0
MAX_BARE_BYTES = 1 << 20


def usable(libraries: Sequence[str]) -> tuple[str, ...]:
    """Those of `libraries` that can be imported here; the others leave no figures."""
    return tuple(library for library in libraries if importlib.util.find_spec(library) is not None)


def hello(name: str) -> Hello:
    return Hello(PROTOCOL_VERSION, name, "host")


async def link_round_trips(link: Link, size: int, rounds: int) -> list[float]:
    """Seconds of each of `rounds` round trips, one message of `size` bytes at a time, by callbacks as stations do."""
    loop = asyncio.get_running_loop()
    payload = bytes(size)
    times: list[float] = []
    done: asyncio.Future[None] = loop.create_future()
    sent = 0.0

    def send() -> None:
        nonlocal sent
        sent = time.perf_counter()
        link.send(EMBED, len(times) + 1, payload)

    def on_message(message: Message) -> None:
        times.append(time.perf_counter() - sent)
        if len(times) < rounds:
            send()
        elif not done.done():
            done.set_result(None)

    link.on_message = on_message
    send()
    async with asyncio.timeout(ROUND_TRIPS_TIMEOUT_S):
        await done
    return times


async def bare_round_trips(library: str, url: str, size: int, rounds: int) -> list[float]:
    """The same through the library's own interface, with nothing of ours: `size` bytes of WebSocket payload."""
    async with asyncio.timeout(ROUND_TRIPS_TIMEOUT_S):
        return await (_bare_picows if library == "picows" else _bare_websockets)(url, size, rounds)


async def _bare_websockets(url: str, size: int, rounds: int) -> list[float]:
    from websockets.asyncio.client import connect as connect_websockets

    payload = bytes(size)
    times: list[float] = []
    async with connect_websockets(
        url, compression=None, ping_interval=None, max_size=MAX_BARE_BYTES, proxy=None
    ) as connection:
        for _ in range(rounds):
            sent = time.perf_counter()
            await connection.send(payload)
            await connection.recv()
            times.append(time.perf_counter() - sent)
    return times


async def _bare_picows(url: str, size: int, rounds: int) -> list[float]:
    import picows

    payload = bytes(size)
    times: list[float] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sent = 0.0

    class Pinger(picows.WSListener):
        def on_ws_connected(self, transport: picows.WSTransport) -> None:
            self.send(transport)

        def send(self, transport: picows.WSTransport) -> None:
            nonlocal sent
            sent = time.perf_counter()
            transport.send(picows.WSMsgType.BINARY, payload)

        def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
            times.append(time.perf_counter() - sent)
            if len(times) < rounds:
                self.send(transport)
            elif not done.done():
                done.set_result(None)

    transport, _ = await picows.ws_connect(Pinger, url)
    try:
        await done
    finally:
        transport.disconnect()
        await transport.wait_disconnected()
    return times


@contextlib.asynccontextmanager
async def echo_process(kind: str, library: str) -> AsyncIterator[tuple[str, str]]:
    """(url, token) of an echo in a child process, ended on leaving."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "host.bench.peer", kind, library,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            ready = json.loads(await child.stdout.readline())
        yield f"ws://127.0.0.1:{ready['port']}", ready["token"]
    finally:
        child.stdin.close()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
