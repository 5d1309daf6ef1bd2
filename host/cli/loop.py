"""The event loop of a command, and its end by a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from aeonflow import new_event_loop

T = TypeVar("T")


class TerminatedError(Exception):
    """The command was told to end by SIGTERM or SIGHUP, and has cleaned up."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"ended by {number.name}")
        self.exit_code = 128 + number


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. Ctrl-C cancels it, its clean-up runs, then KeyboardInterrupt is raised.

    SIGTERM and SIGHUP do the same and raise TerminatedError: stations are drained, the secret's file is removed.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_terminable(main))


async def _terminable(main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await main
    except asyncio.CancelledError:
        if received:
            raise TerminatedError(received[0]) from None
        raise
