"""Heartbeats: what they carry, and peers that fall silent: stopped processes, stalled loops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from aeonflow import Heartbeat, connect
from aeonflow.bands import ATTN
from aeonflow.errors import LinkClosedError

from .peers import QUICK, TOKEN, WAIT_S, Recorder, hello, linked

STATION = """
import asyncio, sys
from aeonflow import Hello, LinkOptions, serve

async def main():
    def on_link(link):
        link.on_message = lambda m: link.send(m.stream, m.sequence, m.payload)
    server = await serve("127.0.0.1", 0, hello=Hello(1, "frozen", "station"), token=sys.argv[1], on_link=on_link,
                         transport=sys.argv[2], options=LinkOptions(heartbeat_s=0.02))
    print(server.url, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.close()

asyncio.run(main())
"""


@asynccontextmanager
async def station(transport: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A station in a process of its own; killed at the end if it is still there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STATION, TOKEN, transport,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = await asyncio.wait_for(process.stdout.readline(), WAIT_S)
        yield process, url.decode().strip()
    finally:
        with suppress(ProcessLookupError):  # it may end, or be found dead, at this moment
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("transport", ["websockets", "picows"])
async def test_a_stopped_process_is_suspected_and_then_given_up(transport: str) -> None:
    async with station(transport) as (process, url):
        gone = Recorder()
        link = await connect(
            url, hello=hello("h", "host"), token=TOKEN, transport=transport, on_close=gone.on_close, options=QUICK
        )
        assert (await link.call(ATTN, b"alive", timeout_s=WAIT_S)).payload == b"alive"
        os.kill(process.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(link.call(ATTN, b"anyone?", timeout_s=WAIT_S))
        error = await gone.closing()
        assert isinstance(error, LinkClosedError)
        assert "silent for" in str(error)
        assert link.is_suspected
        with pytest.raises(LinkClosedError, match="silent for"):
            await waiting


@pytest.mark.parametrize("transport", ["websockets", "picows"])
async def test_a_killed_process_is_noticed_by_the_end_of_its_socket(transport: str) -> None:
    async with station(transport) as (process, url):
        gone = Recorder()
        link = await connect(url, hello=hello("h", "host"), token=TOKEN, transport=transport, on_close=gone.on_close)
        os.kill(process.pid, signal.SIGKILL)
        assert isinstance(await gone.closing(), LinkClosedError)
        assert link.is_closed


async def test_a_stall_of_our_own_loop_is_not_held_against_the_peer() -> None:
    async with linked(("websockets", "picows"), options=QUICK) as pair:
        pair.server.on_message = lambda m: pair.server.send(m.stream, m.sequence, m.payload)
        for _ in range(3):
            time.sleep(2 * QUICK.silence_s)  # noqa: ASYNC251 — the stall is the subject
            assert (await pair.client.call(ATTN, b"x", timeout_s=WAIT_S)).payload == b"x"
        assert not pair.client.is_closed
        assert not pair.server.is_closed


class Beats:
    """A source of heartbeats that counts them and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self._awaited = 0
        self._reached = asyncio.Event()

    def __call__(self) -> Heartbeat:
        self.count += 1
        if self.count >= self._awaited:
            self._reached.set()
        return Heartbeat(self.count, 0.5)

    async def number(self, count: int) -> None:
        self._awaited = count
        await asyncio.wait_for(self._reached.wait(), WAIT_S)


async def test_heartbeats_carry_the_queue_and_the_age_of_the_batch() -> None:
    async with linked(("picows", "websockets"), options=QUICK) as pair:
        beats = Beats()
        pair.server.set_heartbeat(beats)
        await beats.number(3)
        assert 1 <= pair.client.remote_heartbeat.queued <= 3
        assert pair.client.remote_heartbeat.busy_s == 0.5


async def test_heartbeats_keep_an_idle_link_open() -> None:
    async with linked(("websockets", "websockets"), options=QUICK) as pair:
        beats = Beats()
        pair.server.set_heartbeat(beats)
        await beats.number(int(3 * QUICK.silence_s / QUICK.heartbeat_s))
        assert not pair.client.is_closed
