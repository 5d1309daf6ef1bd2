"""The small interface behind which every transport stands: whole binary messages in and out of one connection.

A `Wire` never blocks and starts no task for a message; it calls its `Receiver` from the event loop's read callback.
Transports know no frames and no hello: that is the link's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from ..errors import AeonflowError
from ..frames import Buffer

# RFC 6455: a close frame's payload is at most 125 bytes, two of them the code.
MAX_CLOSE_REASON_BYTES = 123

CLOSE_TIMEOUT_S = 1.0  # a peer that does not answer our close frame in this time is cut off

# Above this many bytes not yet taken by the kernel a sender that calls drain() waits.
HIGH_WATER_BYTES = 1 << 20


class Receiver(Protocol):
    """What a wire calls. `on_lost` comes exactly once, and nothing after it."""

    def on_data(self, message: Buffer) -> None:
        """One whole binary message; its buffer is not reused."""

    def on_fault(self, error: AeonflowError, close_code: int) -> None:
        """The peer broke a rule that the transport checks; the receiver closes the wire."""

    def on_lost(self, error: AeonflowError | None) -> None:
        """The connection is gone. `error` says why, None after a close that we started."""

    def on_congested(self) -> None:
        """The wire itself has answered something while more than the high-water mark was waiting."""

    def on_writable(self) -> None:
        """The bytes waiting fell below the low-water mark."""


class Wire(ABC):
    """One established connection."""

    name: str  # "memory", "websockets" or "picows"
    peer_url: str
    is_congested: bool = False  # more than the high-water mark is waiting
    keeps_messages: bool = False  # what was handed over is still read after `send` has returned

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to read; nothing is delivered before, and nothing from within this call."""

    @abstractmethod
    def send(self, message: Buffer) -> None:
        """Hand over one whole binary message, in order. Silently dropped once closing has begun."""

    @property
    @abstractmethod
    def waiting_bytes(self) -> int:
        """Bytes handed over that have not left the process."""

    @abstractmethod
    def set_high_water(self, size_bytes: int) -> None:
        """Above this many bytes waiting, `on_writable` follows once they have fallen well below it."""

    def delays(self) -> tuple[int, float]:
        """Messages held back by a link delay, and the seconds obtained together. (0, 0.0) without a delay."""
        return 0, 0.0

    @abstractmethod
    def close(self, code: int, reason: str) -> None:
        """Send what waits, then a close frame; `on_lost` follows within CLOSE_TIMEOUT_S."""

    @abstractmethod
    def abort(self) -> None:
        """Cut the connection now; what waits is lost."""


class SocketWire(Wire):
    """What is the same of every wire on a socket. `_transport` is set by the subclass before `start`."""

    _transport: asyncio.Transport

    def __init__(self, peer_url: str) -> None:
        super().__init__()
        self.peer_url = peer_url
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._fragments: bytearray | None = None
        self._is_closing = False
        self._is_lost = False
        self._lost_error: AeonflowError | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop.call_soon(self._read_on)

    @property
    def waiting_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_high_water(self, size_bytes: int) -> None:
        self._transport.set_write_buffer_limits(high=size_bytes)

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()

    def pause_writing(self) -> None:
        self.is_congested = True

    def resume_writing(self) -> None:
        self.is_congested = False
        if self._receiver is not None:
            self._receiver.on_writable()

    @abstractmethod
    def _deliver_early(self, receiver: Receiver) -> None:
        """Hand over what came before `start`."""

    def _read_on(self) -> None:
        receiver = self._receiver
        assert receiver is not None
        self._deliver_early(receiver)
        if self._is_lost:
            receiver.on_lost(self._lost_error)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _expect_end(self) -> None:
        """The closing handshake has begun; it has its time."""
        if self._close_timer is None:
            self._close_timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def _ended(self, error: AeonflowError | None) -> None:
        """The socket is gone; who has not started yet is told when it does."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._is_lost = True
        self._lost_error = error
        if self._receiver is not None:
            self._receiver.on_lost(error)


def end_stream(transport: asyncio.Transport) -> None:
    """Send what waits and the end of the stream, but go on reading where that can be done.

    Closing a socket while the peer still sends resets the connection, and the peer never reads why.
    """
    if transport.can_write_eof():
        transport.write_eof()
    else:
        transport.close()


def cut_reason(reason: str) -> str:
    """`reason` cut to what a close frame holds, never inside a character."""
    return reason.encode()[:MAX_CLOSE_REASON_BYTES].decode(errors="ignore")
