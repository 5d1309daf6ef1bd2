"""A trace of everything an engine does, written when it is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ..errors import InvalidRequestError
from ..network import Network
from .chrome import write_chrome_trace
from .collect import Tracing


@asynccontextmanager
async def traced_to(
    path: str | Path | None, network: Network, clock: Callable[[], float], about: Callable[[], dict[str, Any]]
) -> AsyncIterator[None]:
    """Record the block and write it to `path`; None: no trace, no cost. `about` goes into its `otherData`.

    Raises InvalidRequestError at once where the file cannot be written.
    """
    if path is None:
        yield
        return
    target = Path(path)
    _check_writable(target)
    tracing = Tracing(network, clock)
    await tracing.start()
    try:
        yield
    finally:
        recording = await asyncio.shield(tracing.collect())
        await asyncio.to_thread(write_chrome_trace, recording, target, about())  # seconds for a full one


def _check_writable(path: Path) -> None:
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise InvalidRequestError(f"trace {str(path)!r} cannot be written: {error.strerror or error}") from None
