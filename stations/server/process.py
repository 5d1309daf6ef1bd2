"""A station process: weights, links, signals, the readiness line, the drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import logging
import os
import signal
import ssl as ssl_module
import sys
import time
from collections.abc import Callable, Mapping

from aeonflow import Hello, Link, Server, connect, new_event_loop, serve, station_key
from aeonflow.errors import AeonflowError

from ..errors import StationsError
from ..models.folder import ModelFolder
from ..models.roles import RoleSpan, all_roles, parse_roles
from ..models.store import ModelStore
from .assemble import KV_SHARE, make_station
from .machine import physical_bytes
from .options import StationOptions
from .parent import ParentWatch
from .peers import Dial, OnClose, OnMessage
from .report import announce, fail
from .shell import Shell

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
    return 0


async def _serve(options: StationOptions, environment: Mapping[str, str], parent: ParentWatch | None) -> None:
    loop = asyncio.get_running_loop()
    leaving = asyncio.Event()
    folder, spans = _open_model(options, environment)
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
    shell = Shell(station, _dialler(options, hello))
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


def _open_model(options: StationOptions, environment: Mapping[str, str]) -> tuple[ModelFolder, tuple[RoleSpan, ...]]:
    folder = ModelStore.default(environment).open(options.model)
    layers = folder.card.num_layers
    return folder, parse_roles(options.roles, layers) if options.roles else all_roles(layers)


async def _listen(options: StationOptions, hello: Hello, on_link: Callable[[Link], None]) -> Server:
    tls = None
    if options.tls_cert is not None and options.tls_key is not None:
        tls = ssl_module.SSLContext(ssl_module.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.tls_cert, options.tls_key)
    return await serve(
        options.host,
        options.port,
        hello=hello,
        token=options.token,
        on_link=on_link,
        transport=options.transport,
        ssl=tls,
        allowed_origins=options.allowed_origins,
        insecure=options.insecure,
        link_delay_s=options.link_delay_s,
        coalesce=options.coalesce,
    )


def _dialler(options: StationOptions, hello: Hello) -> Dial:
    """Dials other stations of the fleet, with the key that permits forwarding only."""
    key = station_key(options.token)
    trusted = ssl_module.create_default_context(cafile=options.tls_ca) if options.tls_ca else None

    async def dial(url: str, on_message: OnMessage, on_close: OnClose) -> Link:
        return await connect(
            url,
            hello=hello,
            token=key,
            transport=options.transport,
            on_message=on_message,
            on_close=on_close,
            ssl=trusted if url.startswith("wss:") else None,
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
