"""A station process: weights, links, signals, the readiness line, the drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

from aeonflow import Hello, Link, Server, connect, new_event_loop, serve, station_key
from aeonflow.errors import AeonflowError

from ..errors import StationsError
from ..models.serve import WeightsServer
from ..models.store import ModelStore
from .assemble import KV_SHARE, make_station
from .machine import physical_bytes
from .options import StationOptions
from .parent import ParentWatch
from .peers import Dial, OnClose, OnMessage
from .report import announce, fail
from .shell import Shell
from .tls import client_tls, server_tls
from .weights import obtain_model

logger = logging.getLogger("stations")


def run(options: StationOptions, environment: Mapping[str, str]) -> int:
    """Serve until told to leave; returns the exit status. Errors before ready are told in one line."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    parent = ParentWatch() if options.exit_with_parent else None
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(options, environment, parent))
    except KeyboardInterrupt:
        return 130
    except (AeonflowError, StationsError, OSError, ValueError) as error:
        return fail(str(error), 1, getattr(error, "code", "failed"))
    except MemoryError:
        return fail("no memory for this station's roles", 1, "overloaded")
    except Exception as error:
        logger.debug("the station failed", exc_info=True)
        return fail(f"internal error: {type(error).__name__}: {error}", 1, "internal")
    return 0


async def _serve(options: StationOptions, environment: Mapping[str, str], parent: ParentWatch | None) -> None:
    loop = asyncio.get_running_loop()
    leaving = asyncio.Event()
    folder, spans = await obtain_model(options, ModelStore.default(environment))
    station, hello = make_station(
        options.name,
        folder,
        spans,
        kernels=options.kernels,
        threads=options.threads,
        kv_budget_bytes=options.kv_budget_bytes or int(physical_bytes() * KV_SHARE),
        now=time.monotonic(),
        pid=os.getpid(),
        software=f"aeonflow {importlib.metadata.version('aeonflow')}",
        advertise=options.advertise,
    )
    shell = Shell(station, _dialler(options, hello), answer_weights=WeightsServer(folder).answer_message)
    shell.on_drain = leaving.set
    try:
        server = await _listen(options, hello, shell.add_link)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leaving.set)
        if parent is not None:
            parent.on_gone(lambda: _call_in(loop, leaving.set))
        # What startup made lives as long as the process: the collector need not look at it in every pass again.
        gc.collect()
        gc.freeze()
        announce(
            "ready",
            name=options.name,
            url=_dialable(server),
            port=server.port,
            pid=os.getpid(),
            roles=list(hello.roles),
            model=folder.card.name,
            fingerprint=hello.fingerprint,
            numerics=hello.numerics,
            kernels=hello.kernels,
            transport=server.transport,
        )
        await leaving.wait()
        if not await shell.drain(options.drain_s):
            logger.warning("station %s leaves with work unfinished after %g s", options.name, options.drain_s)
        await server.close("drain", f"station {options.name} leaves")
    finally:
        await shell.close()


async def _listen(options: StationOptions, hello: Hello, on_link: Callable[[Link], None]) -> Server:
    return await serve(
        options.host,
        options.port,
        hello=hello,
        token=options.token,
        on_link=on_link,
        transport=options.transport,
        ssl=server_tls(options),
        allowed_origins=options.allowed_origins,
        insecure=options.insecure,
        link_delay_s=options.link_delay_s,
        coalesce=options.coalesce,
    )


def _dialler(options: StationOptions, hello: Hello) -> Dial:
    """Dials other stations of the fleet, with the key that permits forwarding only."""
    key = station_key(options.token)

    async def dial(url: str, on_message: OnMessage, on_close: OnClose) -> Link:
        return await connect(
            url,
            hello=hello,
            token=key,
            transport=options.transport,
            on_message=on_message,
            on_close=on_close,
            ssl=client_tls(options, url),
            link_delay_s=options.link_delay_s,
            coalesce=options.coalesce,
        )

    return dial


def _dialable(server: Server) -> str:
    """The server's URL as a process of this machine reaches it: a wildcard address is none."""
    if server.host in ("0.0.0.0", ""):
        return server.url.replace(f"//{server.host}:", "//127.0.0.1:")
    return server.url.replace("//[::]:", "//[::1]:")


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the process is leaving already
        loop.call_soon_threadsafe(callback)
