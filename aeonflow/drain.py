"""Waiting until what was sent has left: who waits on one connection, and when they are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .errors import DeadlineError


class DrainWaiters:
    """`waiting_bytes` tells what has not left; at most `high_water_bytes` of it is little enough to go on."""

    def __init__(self, peer_url: str, waiting_bytes: Callable[[], int], high_water_bytes: int) -> None:
        self._peer_url = peer_url
        self._waiting_bytes = waiting_bytes
        self._high_water_bytes = high_water_bytes
        self._waiters: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """There may be room now, or nothing to wait for any more: all look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Until there is room, or `is_over`. DeadlineError with the bytes that are left."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not is_over() and self._waiting_bytes() > self._high_water_bytes:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            done, _ = await asyncio.wait((waiter,), timeout=max(0.0, deadline - loop.time()))
            if not done:
                self._waiters.remove(waiter)
                raise DeadlineError(
                    f"{self._peer_url}: {self._waiting_bytes():,} bytes still waiting after {timeout_s} s, "
                    f"high-water mark {self._high_water_bytes:,}"
                )
