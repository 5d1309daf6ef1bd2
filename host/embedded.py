"""Solo: the station lives in the host's own process, behind the in-memory transport.

The one file of the host that imports station code, and only when a solo engine is launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aeonflow.link import Link
from aeonflow.messages import Hello

from .links import OnClose, OnMessage

if TYPE_CHECKING:
    from stations.embedded import Embedded


class EmbeddedStation:
    """A station with every role, made at the first dial. Called like any other way of dialling."""

    def __init__(
        self, *, model: str, kernels: str, threads: int, coalesce: bool, link_delay_s: float, hello: Hello
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._threads = threads
        self._coalesce = coalesce
        self._link_delay_s = link_delay_s
        self._hello = hello
        self._station: Embedded | None = None

    async def __call__(self, url: str, *, on_message: OnMessage, on_close: OnClose) -> Link:
        from stations.embedded import Embedded

        if self._station is None:
            self._station = await Embedded.start(model=self._model, kernels=self._kernels, threads=self._threads)
        link = await self._station.connect(self._hello, coalesce=self._coalesce, link_delay_s=self._link_delay_s)
        link.on_message = on_message
        link.on_close = on_close
        return link

    async def close(self) -> None:
        """Stop the station and free its memory."""
        station, self._station = self._station, None
        if station is not None:
            await station.close()
