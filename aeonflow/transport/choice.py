"""Which transport and which event loop: `auto` takes the faster one where it can be imported."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

from ..errors import LocalProtocolError
from . import websocket
from .base import Wire
from .dial import Dialler
from .gate import Admitted

logger = logging.getLogger("aeonflow")

TRANSPORTS = ("auto", "websockets", "picows")


class Transport(NamedTuple):
    """A transport's entry points: dial as a client; listen, and upgrade what passed the gate, as a server."""

    name: str
    dial: Dialler
    listen: Callable[..., Awaitable[asyncio.Server]]
    upgrade: Callable[[Admitted], Wire | None]


_WEBSOCKETS = Transport("websockets", websocket.dial, websocket.listen, websocket.upgrade)


def choose_transport(name: str = "auto") -> Transport:
    """`auto` is picows where it can be imported, else websockets. LocalProtocolError for an unknown or missing one."""
    if name not in TRANSPORTS:
        raise LocalProtocolError(f"transport {name!r}: known are {', '.join(TRANSPORTS)}")
    if name == "websockets":
        return _WEBSOCKETS
    try:
        module = importlib.import_module(".picows", __package__)
    except ImportError as error:
        if name == "auto":
            return _WEBSOCKETS
        raise LocalProtocolError(f"transport 'picows' cannot be imported here: {error}") from None
    return Transport("picows", module.dial, module.listen, module.upgrade)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop event loop where uvloop can be imported, else asyncio's; a `loop_factory` for `asyncio.Runner`."""
    try:
        loop = cast(asyncio.AbstractEventLoop, importlib.import_module("uvloop").new_event_loop())
    except ImportError:
        loop = asyncio.new_event_loop()
    loop.set_exception_handler(_handle_exception)
    return loop


def _handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As by default, but for a peer that leaves in the middle of a TLS handshake.

    aiofastnet reports it with the class of an OSError in the place of an instance: it takes it for a bug, and logging
    fails over the class. Such a connection is refused like any other, and a peer must not fill the log.
    """
    exception = context.get("exception")
    if isinstance(exception, type) and issubclass(exception, OSError):
        logger.debug("%s: %s", context.get("message"), exception.__name__)
        return
    loop.default_exception_handler(context)
