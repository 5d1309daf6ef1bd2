"""A dial given up ends its socket: the server sees the end, nothing is left to be collected or logged."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest

from aeonflow import connect
from aeonflow.messages import PROTOCOL_VERSION, Hello

from .peers import TOKEN, WAIT_S, hello, serving

TURNS = 40  # of the event loop; a dial to a server in the same loop takes about 12


@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.parametrize("transport", ["websockets", "picows"])
async def test_a_dial_cancelled_in_its_handshake_ends_its_socket(transport: str, scheme: str) -> None:
    arrived = asyncio.Event()
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read(-1)  # returns at the end of the stream only
        ended.set()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        hello = Hello(PROTOCOL_VERSION, "h", "host")
        dialling = asyncio.create_task(connect(url, hello=hello, token="t", transport=transport))
        await asyncio.wait_for(arrived.wait(), WAIT_S)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        await asyncio.wait_for(ended.wait(), WAIT_S)


@pytest.mark.parametrize("transport", ["websockets", "picows"])
async def test_a_dial_cancelled_at_any_turn_of_the_loop_leaves_nothing(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (server, recorder):
        for turns in range(TURNS):
            dialling = asyncio.create_task(
                connect(server.url, hello=hello("h", "host"), token=TOKEN, transport=transport)
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            dialling.cancel()
            with suppress(asyncio.CancelledError):
                await (await dialling).close()
        await recorder.until(lambda: len(recorder.closed) == len(recorder.links))
    gc.collect()  # a socket or a failure that nobody took up is told of now
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == []
