"""One run of one station process: spawned, ready, reaped. Knows nothing of plans or restarts.

The child's stdin is a pipe that stays open as long as the launcher lives: whatever ends the launcher, SIGKILL included,
closes it, and the station leaves. The child has its own session, so that Ctrl-C in the terminal reaches the host alone,
which decides what it means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

import msgspec

from .logs import StationLog

LAST_OUTPUT_S = 1.0  # after an exit, for the last log lines; a grandchild may hold the pipe for ever
READ_BYTES = 1 << 16
MAX_READY_LINE_BYTES = 1 << 16


class ReadyLine(msgspec.Struct, frozen=True, tag_field="event", tag="ready"):
    """What a station says once it serves: where, and who it is."""

    name: str
    url: str
    port: int
    pid: int


class ErrorLine(msgspec.Struct, frozen=True, tag_field="event", tag="error"):
    """What a station says when it cannot start."""

    message: str


_decode_line = msgspec.json.Decoder(ReadyLine | ErrorLine).decode


class ChildProcess:
    """A running child. Made by `spawn`; `first_line` and `exited` are futures of its two announcements."""

    def __init__(self, process: asyncio.subprocess.Process, log: StationLog) -> None:
        self._process = process
        self._log = log
        loop = asyncio.get_running_loop()
        self._first_line: asyncio.Future[ReadyLine | ErrorLine | None] = loop.create_future()
        self._readers = (
            asyncio.create_task(self._read_stdout(), name=f"stdout of pid {process.pid}"),
            asyncio.create_task(self._read_stderr(), name=f"stderr of pid {process.pid}"),
        )

    @classmethod
    async def spawn(cls, command: Sequence[str], env: Mapping[str, str], log: StationLog) -> ChildProcess:
        """Start the child. Errors: OSError when it cannot be started at all.

        A cancellation waits for the start and then kills: asyncio loses the exit status of a child that is cancelled
        between fork and its pipes.
        """
        pipe = asyncio.subprocess.PIPE
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), start_new_session=True
            )
        )
        try:
            return cls(await asyncio.shield(starting), log)
        except asyncio.CancelledError:
            child = cls(await starting, log)
            child.kill()
            await child.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    async def announced(self) -> ReadyLine | ErrorLine | None:
        """The readiness or error line, or None when stdout ended without one."""
        return await asyncio.shield(self._first_line)

    async def wait(self) -> int:
        """Until the child is reaped and its last output is in the log."""
        status = await self._process.wait()
        await asyncio.wait(self._readers, timeout=LAST_OUTPUT_S)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(OSError):
                await self._process.stdin.wait_closed()
        return status

    def terminate(self) -> None:
        """Ask it to drain and leave (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Not Process.send_signal: that polls first, and a poll steals the exit status from asyncio's own wait.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        head = b""
        try:
            while data := await self._process.stdout.read(READ_BYTES):
                if self._first_line.done():
                    self._log.feed(data)
                    continue
                head += data
                while b"\n" in head and not self._first_line.done():
                    line, head = head.split(b"\n", 1)
                    self._take_line(line)
                if self._first_line.done() or len(head) > MAX_READY_LINE_BYTES:
                    self._log.feed(head)
                    head = b""
        finally:
            if head:
                self._log.feed(head)
            if not self._first_line.done():
                self._first_line.set_result(None)

    def _take_line(self, line: bytes) -> None:
        try:
            self._first_line.set_result(_decode_line(line))
        except msgspec.DecodeError:
            self._log.feed(line + b"\n")  # a library that prints; the announcement is still to come

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(READ_BYTES):
            self._log.feed(data)
