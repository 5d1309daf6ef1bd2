"""What can be set about a link, what it counts, and how error codes map to WebSocket close codes."""

from __future__ import annotations

import msgspec

from .batcher import FlowSendBatcher
from .handshake import HelloCheck, check_hello
from .transport.base import HIGH_WATER_BYTES

ORDERLY_CODES = frozenset({"done", "drain"})  # goodbyes after which on_close gets no error

CLOSE_CODES = {
    "done": 1000,
    "drain": 1001,
    "protocol_error": 1002,
    "too_large": 1009,
    "mismatch": 1008,
    "unauthorized": 1008,
    "deadline": 1008,
    "link_closed": 1008,
    "overloaded": 1013,
    "internal": 1011,
}


class LinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes. The defaults are those of `docs/protocol.md`, *Limits*."""

    handshake_s: float = 5.0  # from the TCP connection to the peer's hello
    heartbeat_s: float = 1.0
    suspected_s: float = 2.0
    silence_s: float = 5.0  # then the link closes
    high_water_bytes: int = HIGH_WATER_BYTES  # drain() waits above it
    max_outbound_bytes: int = 256 << 20  # a peer that lets this much pile up is cut off
    check: HelloCheck = check_hello


class LinkStats(msgspec.Struct):
    """Counters of one link. A message here is a WebSocket message: with coalescing it holds several frames."""

    frames_sent: int = 0
    frames_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    calls: int = 0
    late_replies: int = 0  # came after their call was given up
    vented: int = 0  # calls refused or failed here
    dropped: int = 0  # bad seeds and vents to nobody
    delayed_messages: int = 0  # with a link delay: how many messages it held back
    delay_obtained_s: float = 0.0  # and their delay together, as measured

    def brought_up_to_date(
        self, batcher: FlowSendBatcher, frames_received: int, late_replies: int, delayed: int, obtained_s: float
    ) -> LinkStats:
        """With what others count of the same link."""
        self.frames_sent, self.messages_sent, self.bytes_sent = batcher.frames, batcher.messages, batcher.bytes
        self.frames_received, self.late_replies = frames_received, late_replies
        self.delayed_messages, self.delay_obtained_s = delayed, obtained_s
        return self
