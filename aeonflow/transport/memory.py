"""The in-process transport: two wires that hand messages to each other through the event loop.

Same rules as a socket: order, one turn of the loop between sending and receiving, bytes waiting counted until the
receiver has taken them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ..errors import LinkClosedError
from ..frames import Buffer
from .base import HIGH_WATER_BYTES, Receiver, Wire


class MemoryWire(Wire):
    """One end of a pair. Messages are handed over as they are: the sender must not change them afterwards."""

    name = "memory"
    keeps_messages = True

    def __init__(self, peer_url: str) -> None:
        self.peer_url = peer_url
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._peer: MemoryWire | None = None
        self._inbox: deque[Buffer | _Close] = deque()
        self._inbox_bytes = 0
        self._is_scheduled = False
        self._is_closing = False
        self._is_lost = False
        self.is_congested = False
        self._high_water_bytes = HIGH_WATER_BYTES

    @staticmethod
    def pair(url_a: str = "memory:a", url_b: str = "memory:b") -> tuple[MemoryWire, MemoryWire]:
        """Two connected wires; `url_a` is what b sees as its peer."""
        a, b = MemoryWire(url_b), MemoryWire(url_a)
        a._peer, b._peer = b, a
        return a, b

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._schedule()

    def send(self, message: Buffer) -> None:
        if self._is_closing or self._peer is None:
            return
        self._peer._put(message, len(message))
        if self._peer._inbox_bytes > self._high_water_bytes:
            self.is_congested = True

    @property
    def waiting_bytes(self) -> int:
        return self._peer._inbox_bytes if self._peer is not None else 0

    def set_high_water(self, size_bytes: int) -> None:
        self._high_water_bytes = size_bytes

    def close(self, code: int, reason: str) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._peer is not None:
            self._peer._put(_Close(code, reason), 0)
        self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if self._peer is not None and not self._is_closing:
            self._peer._put(_Close(1006, "connection cut"), 0)
        self._is_closing = True
        self._loop.call_soon(self._lose, None)

    def _put(self, item: Buffer | _Close, size: int) -> None:
        if self._is_lost:
            return
        self._inbox.append(item)
        self._inbox_bytes += size
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._receiver is not None:
            self._is_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        receiver = self._receiver
        assert receiver is not None
        for _ in range(len(self._inbox)):  # what handlers send meanwhile waits for the next turn
            if self._is_lost or not self._inbox:
                break
            item = self._inbox.popleft()
            if isinstance(item, _Close):
                reason = f"{self.peer_url} closed the connection: {item.code} {item.reason}".rstrip()
                self._lose(LinkClosedError(reason))
                return
            self._inbox_bytes -= len(item)
            receiver.on_data(item)
        peer = self._peer
        if peer is not None and peer.is_congested and self._inbox_bytes <= peer._high_water_bytes // 4:
            peer.is_congested = False
            if peer._receiver is not None:
                peer._receiver.on_writable()
        if self._inbox:
            self._schedule()

    def _lose(self, error: LinkClosedError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._inbox.clear()
        self._inbox_bytes = 0
        if self._receiver is not None:
            self._receiver.on_lost(error)


class _Close:
    __slots__ = ("code", "reason")

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
