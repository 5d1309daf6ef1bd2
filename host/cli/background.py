"""An engine on an event loop in a thread of its own, so that the main thread can wait for a line and for Ctrl-C.

The loop must never stand still: a link whose host sends no heartbeat is closed after five seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aeonflow import new_event_loop

if TYPE_CHECKING:
    from host.engine import Engine

T = TypeVar("T")


class EngineThread:
    """`with EngineThread(open_engine) as thread:` has the engine ready inside the block, and no process after it."""

    def __init__(self, open_engine: Callable[[], AbstractAsyncContextManager[Engine]]) -> None:
        self._open = open_engine
        self._context: AbstractAsyncContextManager[Engine] | None = None
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.engine: Engine

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.engine = self.wait(self._enter())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.wait(self._leave())
        finally:
            self._end()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call in the loop's thread, soon."""
        self._loop.call_soon_threadsafe(function)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Ctrl-C cancels it and raises KeyboardInterrupt; leaving the block waits for it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
            raise

    async def _enter(self) -> Engine:
        self._context = self._open()
        return await self._context.__aenter__()

    async def _leave(self) -> None:
        assert self._context is not None
        await self._context.__aexit__(None, None, None)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end(self) -> None:
        """Cancel what is left on the loop, let it clean up, and close."""

        async def finish() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        self.submit(finish()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
