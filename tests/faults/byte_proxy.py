"""A TCP proxy between two peers that breaks the connection on command: cut, stall, corrupt, half-close."""

from __future__ import annotations

import asyncio
import weakref
from typing import Self
from urllib.parse import urlsplit

READ_BYTES = 1 << 16


class ByteProxy:
    """Forwards every connection to `target` (ws://HOST:PORT). One command acts on all its connections."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._far: set[asyncio.StreamWriter] = set()  # those towards the target
        self._ended: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._corrupt_towards: str | None = None
        self.connections = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Reset both sides of every connection, as a cable that is pulled out; new connections are let through."""
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self) -> None:
        """Forward nothing more, in either direction, and keep every connection open."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def corrupt(self, towards: str) -> None:
        """Flip every bit of the next bytes towards `client` or `target`, once."""
        self._corrupt_towards = towards

    def half_close(self) -> None:
        """Tell every target that its client has nothing more to send; the other direction stays open."""
        for writer in list(self._far):
            self._end(writer)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        sides = {writer, far_writer}
        self._writers |= sides
        self._far.add(far_writer)
        try:
            await asyncio.gather(self._pump(reader, far_writer, "target"), self._pump(far_reader, writer, "client"))
        except OSError:
            pass  # reset by either side, or by `cut`
        finally:
            self._writers -= sides
            self._far.discard(far_writer)
            for side in sides:
                side.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, towards: str) -> None:
        while data := await reader.read(READ_BYTES):
            await self._flowing.wait()
            if writer.transport.is_closing() or writer in self._ended:
                continue  # what comes after the end of this direction is lost
            if self._corrupt_towards == towards:
                self._corrupt_towards = None
                data = bytes(b ^ 0xFF for b in data)
            writer.write(data)
            await writer.drain()
        self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        if writer not in self._ended and not writer.transport.is_closing():
            self._ended.add(writer)
            writer.write_eof()
