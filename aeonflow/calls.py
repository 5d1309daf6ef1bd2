"""The calls in flight on one connection: ids, replies, and the ids of calls given up.

What the two sides start never shares a number: the dialling side uses numbers below 0x80000000 for what it does not
wait for and odd ones above for its calls, the accepting side even ones from 0x80000000 on for both.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from .assembly import Message
from .errors import AeonflowError, LocalProtocolError, OverloadedError

FIRST_CALL_ID = 0x8000_0000
MAX_ABANDONED_CALLS = 1024  # late replies of more calls than this are taken for messages


class CallTable:
    """Pending calls keyed by (stream, sequence). `late_replies` counts replies to calls given up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_dialer: bool) -> None:
        self._loop = loop
        self._is_dialer = is_dialer
        self._next_id = FIRST_CALL_ID | int(is_dialer)
        self._next_one_way = 0
        self._pending: dict[tuple[int, int], asyncio.Future[Message]] = {}
        self._abandoned: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.late_replies = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_one_way(self) -> int:
        """A sequence for a message that nobody here waits on."""
        if self._is_dialer:
            sequence = self._next_one_way
            self._next_one_way = (sequence + 1) & (FIRST_CALL_ID - 1)
            return sequence
        return self._next()

    def open(self, stream: int, max_calls: int) -> tuple[int, asyncio.Future[Message]]:
        """A new call's id and the future of its reply. OverloadedError at `max_calls` in flight."""
        if len(self._pending) >= max_calls:
            raise OverloadedError(f"{len(self._pending)} calls in flight: {max_calls} are allowed on this connection")
        for _ in range(len(self._pending) + len(self._abandoned) + 1):
            sequence = self._next()
            key = (stream, sequence)
            if key not in self._pending and key not in self._abandoned:
                reply: asyncio.Future[Message] = self._loop.create_future()
                self._pending[key] = reply
                return sequence, reply
        raise LocalProtocolError(f"no free call id on stream {stream:04x}")

    def _next(self) -> int:
        sequence = self._next_id
        self._next_id = FIRST_CALL_ID | (sequence + 2) & 0xFFFF_FFFF
        return sequence

    def take(self, message: Message) -> bool:
        """True when `message` answers a call of ours, in flight or given up; it goes no further then."""
        key = (message.stream, message.sequence)
        reply = self._pending.get(key)
        if reply is not None:
            if not reply.done():
                reply.set_result(message)
            return True
        if key in self._abandoned:
            del self._abandoned[key]
            self.late_replies += 1
            return True
        return False

    def end(self, stream: int, sequence: int) -> None:
        """The caller has its answer or its error."""
        self._pending.pop((stream, sequence), None)

    def abandon(self, stream: int, sequence: int, error: AeonflowError | None = None) -> None:
        """Remember a call given up; with `error`, its waiter gets that."""
        self._abandoned[stream, sequence] = None
        if len(self._abandoned) > MAX_ABANDONED_CALLS:
            self._abandoned.popitem(last=False)
        reply = self._pending.pop((stream, sequence), None)
        if error is not None and reply is not None and not reply.done():
            reply.set_exception(error)

    def fail_all(self, make_error: Callable[[], AeonflowError]) -> None:
        """The connection is gone: every waiter gets an error of its own."""
        pending, self._pending = self._pending, {}
        for reply in pending.values():
            if not reply.done():
                reply.set_exception(make_error())
