"""Solo: the station lives in the host's own process, behind the in-memory transport.

The one file of the host that imports station code, and only when a solo engine is launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aeonflow.errors import LinkClosedError
from aeonflow.link import Link
from aeonflow.messages import Hello

from .links import OnClose, OnMessage

if TYPE_CHECKING:
    from stations.embedded import Embedded


class EmbeddedStation:
    """A station with every role. `start` it, then call it like any other way of dialling."""

    def __init__(self, *, coalesce: bool, link_delay_s: float, hello: Hello) -> None:
        self._coalesce = coalesce
        self._link_delay_s = link_delay_s
        self._hello = hello
        self._station: Embedded | None = None

    async def start(self, *, model: str, kernels: str, threads: int) -> None:
        """Open the model and load (the first time: compile) its kernels. Raises the errors of models and kernels."""
        from stations.embedded import Embedded

        self._station = await Embedded.start(model=model, kernels=kernels, threads=threads)

    async def __call__(self, url: str, *, on_message: OnMessage, on_close: OnClose) -> Link:
        if self._station is None:
            raise LinkClosedError(f"the embedded station {url} does not run")
        link = await self._station.connect(self._hello, coalesce=self._coalesce, link_delay_s=self._link_delay_s)
        link.on_message = on_message
        link.on_close = on_close
        return link

    async def close(self) -> None:
        """Stop the station and free its memory."""
        station, self._station = self._station, None
        if station is not None:
            await station.close()
