"""The end of a turn: when what was queued is sent.

What a handler queues, on whatever connections, is sent when the reader that called it has delivered its message: no
second turn of the loop, no wake-up. What is queued elsewhere waits for `call_soon`. One `Turn` an event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

logger = logging.getLogger("aeonflow.link")


class Turn:
    """`schedule` is what a batcher asks for the end of the turn; readers stand between `begin` and `end`.

    It holds no loop: the table below must not keep loops alive.
    """

    __slots__ = ("_depth", "_pending")

    def __init__(self) -> None:
        self._depth = 0
        self._pending: list[Callable[[], None]] = []

    def schedule(self, callback: Callable[[], None]) -> None:
        if self._depth:
            self._pending.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    def begin(self) -> None:
        """A reader begins to deliver."""
        self._depth += 1

    def end(self) -> None:
        """It has delivered; the outermost one sends what waits."""
        self._depth -= 1
        if self._pending and not self._depth:
            pending, self._pending = self._pending, []
            for callback in pending:
                try:
                    callback()
                except Exception:  # one connection's fault must not keep back what waits on the others
                    logger.exception("sending at the end of a turn failed")


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """The turn of `loop`, made when it is first asked for."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = Turn()
    return turn
