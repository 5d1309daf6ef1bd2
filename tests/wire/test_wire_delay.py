"""The link delay: never shorter than asked for, order kept, nothing left behind."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from aeonflow import LinkOptions
from aeonflow.bands import ATTN
from aeonflow.errors import DeadlineError
from aeonflow.transport.delay import TimingThread

from .peers import ALL_PAIRS, CALM, WAIT_S, linked

DELAY_S = 0.01


def delay_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "aeonflow-link-delay"]


async def no_delay_threads() -> None:
    for thread in delay_threads():
        await asyncio.to_thread(thread.join, WAIT_S)
    assert delay_threads() == []


@pytest.mark.parametrize("transports", ALL_PAIRS, ids="-".join)
async def test_a_round_trip_takes_both_delays_and_what_was_obtained_is_counted(transports: tuple[str, str]) -> None:
    async with linked(transports, link_delay_s=DELAY_S) as pair:
        pair.server.on_message = lambda m: pair.server.send(m.stream, m.sequence, m.payload)
        start = time.monotonic()
        for _ in range(5):
            await pair.client.call(ATTN, b"x", timeout_s=WAIT_S)
        elapsed_s = time.monotonic() - start
        stats = pair.client.stats
        assert stats.delayed_messages == stats.messages_sent
        assert stats.delay_obtained_s / stats.delayed_messages >= DELAY_S
        assert elapsed_s >= 5 * 2 * DELAY_S
        assert len(delay_threads()) == 1
    await no_delay_threads()


@pytest.mark.parametrize("transports", ALL_PAIRS, ids="-".join)
async def test_order_is_kept_under_a_delay(transports: tuple[str, str]) -> None:
    async with linked(transports, link_delay_s=0.002, coalesce=False) as pair:
        for n in range(300):
            pair.client.send(ATTN, n, bytes(n))
            if n % 50 == 0:
                await asyncio.sleep(0.001)
        received = await pair.at_server.count(300)
        assert [message.sequence for message in received] == list(range(300))


async def test_messages_in_flight_do_not_wait_for_each_other() -> None:
    async with linked(("memory", "memory"), link_delay_s=0.05, coalesce=False) as pair:
        start = time.monotonic()
        for n in range(100):
            pair.client.send(ATTN, n, b"")
        await pair.at_server.count(100)
        assert time.monotonic() - start < 100 * 0.05


async def test_what_was_sent_before_a_close_still_arrives() -> None:
    async with linked(("picows", "websockets"), link_delay_s=DELAY_S) as pair:
        pair.client.send(ATTN, 1, b"last words")
        await pair.client.close("drain", "leaving")
        assert await pair.at_server.closing() is None
        assert [m.payload for m in pair.at_server.messages] == [b"last words"]
    await no_delay_threads()


async def test_drain_waits_for_what_the_delay_holds() -> None:
    options = LinkOptions(heartbeat_s=600, silence_s=600, high_water_bytes=1000)
    async with linked(("memory", "memory"), link_delay_s=0.05, options=options) as pair:
        pair.client.send(ATTN, 1, bytes(100_000))
        assert pair.client.waiting_bytes >= 100_000
        with pytest.raises(DeadlineError):
            await pair.client.drain(0.001)
        await pair.client.drain(WAIT_S)
        assert pair.client.waiting_bytes <= 1000


async def test_a_connection_that_breaks_takes_what_was_held_with_it() -> None:
    async with linked(("websockets", "websockets"), link_delay_s=0.3, options=CALM) as pair:
        assert pair.client.stats.delayed_messages == 1  # hello
        pair.client.send(ATTN, 1, b"never")
        pair.client._wire.abort()
        assert await pair.at_client.closing() is not None
        assert pair.client.waiting_bytes == 0
        await pair.at_server.closing()
    await no_delay_threads()


def test_a_loop_that_is_closed_does_not_stop_the_timing_of_others() -> None:
    timing = TimingThread()
    closed, living = asyncio.new_event_loop(), asyncio.new_event_loop()
    closed.close()
    timing.hold()
    try:
        now = time.monotonic()
        timing.call_at(now, closed, lambda: None)
        timing.call_at(now + 0.01, living, living.stop)
        living.call_later(WAIT_S, living.stop)
        living.run_forever()
        assert time.monotonic() - now < WAIT_S
    finally:
        timing.drop()
        living.close()
