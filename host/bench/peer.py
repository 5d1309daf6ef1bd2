"""The other end of a wire measurement, in a process of its own: sends back what comes, or counts it.

`python -m host.bench.peer KIND LIBRARY` prints one JSON line {port, token} and serves until its stdin ends. KIND bare
is the library alone, its own interface, nothing of ours; link is an aeonflow link, echoing whole messages on EMBED and
answering on TRACES when a counted run is complete.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys

from aeonflow import Link, Message, new_event_loop, serve
from aeonflow.bands import EMBED, TRACES

from .echo import MAX_BARE_BYTES, hello


async def serve_link(library: str) -> tuple[int, str]:
    token = secrets.token_hex(16)

    def on_link(link: Link) -> None:
        expected = received = 0

        def on_message(message: Message) -> None:
            nonlocal expected, received
            if message.stream == EMBED:
                link.send(EMBED, message.sequence, message.payload)
                return
            if message.sequence == 0:  # announces a counted run: how many messages follow
                expected, received = int.from_bytes(message.payload, "big"), 0
                return
            received += 1
            if received == expected:
                link.send(TRACES, 0, b"")

        link.on_message = on_message

    server = await serve("127.0.0.1", 0, hello=hello("echo"), token=token, on_link=on_link, transport=library)
    return server.port, token


async def serve_bare(library: str) -> int:
    if library == "picows":
        import picows

        class Echo(picows.WSListener):
            def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
                if frame.msg_type == picows.WSMsgType.BINARY:
                    transport.send(picows.WSMsgType.BINARY, frame.get_payload_as_memoryview())

        server = await picows.ws_create_server(lambda _: Echo(), "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])
    from websockets.asyncio.server import ServerConnection
    from websockets.asyncio.server import serve as serve_websockets

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    listening = await serve_websockets(
        echo, "127.0.0.1", 0, compression=None, ping_interval=None, max_size=MAX_BARE_BYTES
    )
    return int(next(iter(listening.sockets)).getsockname()[1])


async def _main(kind: str, library: str) -> None:
    if kind == "link":
        port, token = await serve_link(library)
    else:
        port, token = await serve_bare(library), ""
    print(json.dumps({"port": port, "token": token}), flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_main(sys.argv[1], sys.argv[2]))
