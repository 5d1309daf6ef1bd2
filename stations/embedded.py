"""A station inside the host's own process, behind the in-memory transport: `solo`.

The same core and the same shell as a station process, without sockets; its messages are no hops.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import time

from aeonflow import Hello, Link, memory_pair
from aeonflow.errors import UnsupportedError

from .core.station import Station
from .models.folder import ModelFolder
from .models.roles import all_roles, parse_roles
from .models.serve import WeightsServer
from .models.store import ModelStore
from .server.assemble import KV_SHARE, make_station
from .server.machine import physical_bytes
from .server.shell import Shell


class Embedded:
    """A running station. Belongs to the event loop in which it was started; `close` it there."""

    def __init__(self, shell: Shell, hello: Hello) -> None:
        self.hello = hello
        self._shell = shell

    @classmethod
    async def start(
        cls,
        model: str,
        *,
        kernels: str = "fast",
        threads: int = 1,
        roles: str = "",
        name: str = "solo",
        kv_budget_bytes: int = 0,
    ) -> Embedded:
        """Open `model` (a name in the cache, a folder, `synthetic:…`) and be ready for `connect`.

        `roles` "" means every role. Raises the errors of models and kernels. BLAS and numba threads are the host
        process's own: set them before numpy is imported.
        """

        def load() -> tuple[ModelFolder, Station, Hello]:
            folder = ModelStore.default(os.environ).open(model)
            spans = parse_roles(roles, folder.card.num_layers) if roles else all_roles(folder.card.num_layers)
            station, hello = make_station(
                name,
                folder,
                spans,
                kernels=kernels,
                threads=threads,
                kv_budget_bytes=kv_budget_bytes or int(physical_bytes() * KV_SHARE),
                now=time.monotonic(),
                pid=os.getpid(),
                software=f"aeonflow {importlib.metadata.version('aeonflow')}",
                in_process=True,
            )
            return folder, station, hello

        # A first start may compile kernels for a minute: the loop belongs to the program that embeds the engine.
        folder, station, hello = await asyncio.to_thread(load)
        return cls(Shell(station, _no_dial, answer_weights=WeightsServer(folder).answer_message), hello)

    async def connect(self, hello: Hello, *, coalesce: bool = True, link_delay_s: float = 0.0) -> Link:
        """A link of the host to this station, with every permission; set its on_message and on_close at once."""
        host_side, station_side = await memory_pair(hello, self.hello, coalesce=coalesce, link_delay_s=link_delay_s)
        self._shell.add_link(station_side)
        return host_side

    async def close(self) -> None:
        """End links and compute thread, free the memory."""
        await self._shell.close()


async def _no_dial(url: str, on_message: object, on_close: object) -> Link:
    raise UnsupportedError(f"an embedded station carries every role of its routes, it dials nobody ({url})")
