"""A dial given up in its handshake ends its socket: the server sees the end, nothing is left to be collected."""

from __future__ import annotations

import asyncio

import pytest

from aeonflow import connect
from aeonflow.messages import PROTOCOL_VERSION, Hello

WAIT_S = 10.0


@pytest.mark.parametrize("transport", ["websockets", "picows"])
async def test_a_dial_cancelled_in_its_handshake_ends_its_socket(transport: str) -> None:
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
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        hello = Hello(PROTOCOL_VERSION, "h", "host")
        dialling = asyncio.create_task(connect(url, hello=hello, token="t", transport=transport))
        await asyncio.wait_for(arrived.wait(), WAIT_S)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        await asyncio.wait_for(ended.wait(), WAIT_S)
