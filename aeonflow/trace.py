"""What is recorded of passes while someone asked for it: a bounded ring of events (`docs/tracing.md`).

Hosts and stations record into the same kind of ring. The hot path asks one question, whether there is a recorder;
without one nothing is made and nothing is kept. Events are fixed records of numbers, read off tensor prefixes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum

from .bands import RECEIVERS
from .frames import HEADER_BYTES, Buffer
from .messages import TraceEvent
from .tensors import PREFIX, PREFIX_BYTES

MAX_EVENTS = 1 << 20  # of one ring: about 200 MB


class What(IntEnum):
    """What an event tells."""

    RECEIVE = 1  # a tensor message was taken from a link: checked, joined, queued
    COMPUTE = 2  # a pass went through a kernel call
    SEND = 3  # a tensor message was framed and written
    SAMPLE = 4  # the host chose a token
    WAIT = 5  # the host waited for the answer to a pass


_RECEIVE, _SEND = int(What.RECEIVE), int(What.SEND)


class Recorder:
    """A ring of the newest `max_events` events. `clock`: monotonic seconds. `dropped` counts what was overwritten."""

    def __init__(self, max_events: int, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.dropped = 0
        self.num_batches = 0
        self._max_events = max_events
        self._events: deque[TraceEvent] = deque(maxlen=max_events)

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: TraceEvent) -> None:
        """Keep an event, in place of the oldest when the ring is full."""
        if len(self._events) == self._max_events:
            self.dropped += 1
        self._events.append(event)

    def received(self, began_s: float, stream: int, flags: int, payload: Buffer) -> None:
        """A message was handled, from `began_s` until now. Anything but tensors is passed over."""
        if stream in RECEIVERS and len(payload) >= PREFIX_BYTES:
            self._message(_RECEIVE, began_s, stream, flags, payload, len(payload), "")

    def sent(self, began_s: float, stream: int, flags: int, pieces: Sequence[Buffer], place: str) -> None:
        """A message was framed for `place` (a url, empty: a host) from `began_s` until now."""
        if stream in RECEIVERS and len(pieces[0]) >= PREFIX_BYTES:
            self._message(_SEND, began_s, stream, flags, pieces[0], sum(len(piece) for piece in pieces), place)

    def take(self, count: int) -> tuple[TraceEvent, ...]:
        """The oldest events, at most `count`; the ring forgets them."""
        events = self._events
        return tuple(events.popleft() for _ in range(min(count, len(events))))

    def _message(
        self, what: int, began_s: float, stream: int, flags: int, prefix: Buffer, payload_bytes: int, place: str
    ) -> None:
        session, epoch, _, _, first, rows, layer, kind, port, options, *_ = PREFIX.unpack_from(prefix)
        self.add(
            TraceEvent(
                what, began_s, self.clock(), stream, layer, layer, session, epoch, first, rows, port, options >> 3,
                HEADER_BYTES + payload_bytes, 0.0, 0, place, int(flags), kind,
            )
        )  # fmt: skip
