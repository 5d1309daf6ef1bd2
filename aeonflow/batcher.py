"""FlowSendBatcher: frames queued in one turn of the event loop leave as one WebSocket message.

Frames are plainly concatenated, at most 16 and 64 KiB a message; order is never changed. A payload over the cap, or one
that is not exactly one frame, flushes what waits and goes alone. One batcher a socket. It knows no socket: it is given
`write` for a whole message and `schedule` for "at the end of this turn".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .errors import LinkClosedError
from .frames import Buffer, is_single_frame

MAX_BATCH_FRAMES = 16
MAX_BATCH_BYTES = 64 * 1024


class FlowSendBatcher:
    """Coalesces packed frames. With `coalesce` off every payload is a message of its own, written at once.

    `write` takes one whole message and must not call back into `send`. `schedule` defaults to `call_soon` of the
    running event loop. Counters: `frames`, `messages`, `bytes` written or waiting; `frames_per_message`.
    """

    def __init__(
        self,
        write: Callable[[Buffer], None],
        *,
        coalesce: bool = True,
        max_frames: int = MAX_BATCH_FRAMES,
        max_bytes: int = MAX_BATCH_BYTES,
        schedule: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        if max_frames < 1 or max_bytes < 1:
            raise ValueError(f"max_frames {max_frames}, max_bytes {max_bytes}: both must be at least 1")
        self._write = write
        self._schedule = schedule
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._waiting: list[Buffer] = []
        self._is_scheduled = False
        self._is_closed = False
        self.coalesce = coalesce
        self.waiting_bytes = 0
        self.frames = 0
        self.messages = 0
        self.bytes = 0

    @property
    def frames_per_message(self) -> float:
        """Mean over all messages so far; 0.0 before the first."""
        return (self.frames - len(self._waiting)) / self.messages if self.messages else 0.0

    def send(self, payload: Buffer) -> None:
        """Queue `payload`. It must not be changed afterwards. LinkClosedError after `close`."""
        if is_single_frame(payload):
            self.send_frame(payload)
        else:
            if self._is_closed:
                raise self._closed()
            self.flush()
            self._write_message(payload)

    def send_frame(self, packed: Buffer) -> None:
        """Queue what is known to be exactly one packed frame."""
        if self._is_closed:
            raise self._closed()
        self.frames += 1
        size = len(packed)
        if not self.coalesce or size > self._max_bytes:
            if self._waiting:
                self.flush()
            self.messages += 1
            self.bytes += size
            self._write(packed)
            return
        if self.waiting_bytes + size > self._max_bytes:
            self.flush()
        self._waiting.append(packed)
        self.waiting_bytes += size
        if len(self._waiting) >= self._max_frames:
            self.flush()
        elif not self._is_scheduled:
            self._is_scheduled = True
            (self._schedule or asyncio.get_running_loop().call_soon)(self._end_of_turn)

    def write_frame(self, packed: Buffer) -> None:
        """Write one packed frame at once, in one message with what waits."""
        if self._waiting:
            self.send_frame(packed)
            self.flush()
            return
        if self._is_closed:
            raise self._closed()
        self.frames += 1
        self.messages += 1
        self.bytes += len(packed)
        self._write(packed)

    def flush(self) -> None:
        """Write what waits, as one message, now."""
        waiting = self._waiting
        if waiting:
            self._waiting = []
            self.waiting_bytes = 0
            self._write_message(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def close(self) -> None:
        """Flush, then refuse what is sent later. May be called again."""
        self._is_closed = True
        self.flush()

    def _end_of_turn(self) -> None:
        self._is_scheduled = False
        self.flush()

    def _write_message(self, message: Buffer) -> None:
        self.messages += 1
        self.bytes += len(message)
        self._write(message)

    @staticmethod
    def _closed() -> LinkClosedError:
        return LinkClosedError("the batcher is closed: nothing more is sent on this connection")
