"""How links are made: `connect`, `serve`, `memory_pair`."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl as ssl_module
from collections.abc import Callable, Collection
from functools import partial

from .assembly import Message
from .auth import Gatekeeper, Permission, check_token
from .batcher import MAX_BATCH_BYTES
from .errors import AeonflowError, LinkClosedError, LocalProtocolError
from .frames import HEADER_BYTES, MAX_PAYLOAD_BYTES
from .link import Link
from .link_options import LinkOptions
from .messages import Hello
from .transport.base import Wire
from .transport.choice import Transport, choose_transport
from .transport.delay import DelayedWire
from .transport.dial import make_target
from .transport.gate import Admitted, Gate, GateRules
from .transport.memory import MemoryWire

OnMessage = Callable[[Message], None]
OnClose = Callable[[AeonflowError | None], None]
OnLink = Callable[[Link], None]

MAX_UNAUTHENTICATED = 256  # sockets that have not shown a token yet
MAX_LINKS = 4096
BACKLOG = 256


def _listen_failure(error: OSError) -> str:
    """The system's own words: asyncio puts the address before them once more."""
    if error.errno is not None and error.errno > 0:  # a name that cannot be resolved has a negative number
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)


def wire_limit(max_message_bytes: int) -> int:
    """The largest WebSocket message that can hold what the limit allows: one frame of it, or a full batch."""
    return max(min(max_message_bytes, MAX_PAYLOAD_BYTES) + HEADER_BYTES, MAX_BATCH_BYTES)


async def connect(
    url: str,
    *,
    hello: Hello,
    token: str,
    transport: str = "auto",
    on_message: OnMessage | None = None,
    on_close: OnClose | None = None,
    ssl: ssl_module.SSLContext | None = None,
    link_delay_s: float = 0.0,
    coalesce: bool = True,
    options: LinkOptions = LinkOptions(),  # noqa: B008 — frozen
) -> Link:
    """Dial `url` (ws:// or wss://) and return the link once both hellos agree.

    No proxy, no redirects. AuthenticationError for 401 and 403, VersionMismatchError for a hello that does not fit,
    LinkClosedError when nobody answers in time, LocalProtocolError for a bad URL or token.
    """
    chosen = choose_transport(transport)
    target = make_target(url, check_token(token), ssl, wire_limit(hello.limits.max_message_bytes), options.handshake_s)
    wire = await chosen.dial(target)
    link = _make_link(wire, hello, options, link_delay_s, is_dialer=True, coalesce=coalesce)
    if on_message is not None:
        link.on_message = on_message
    link.on_close = on_close
    await _opened(link)
    return link


async def memory_pair(
    hello_a: Hello,
    hello_b: Hello,
    *,
    on_message_a: OnMessage | None = None,
    on_message_b: OnMessage | None = None,
    link_delay_s: float = 0.0,
    coalesce: bool = True,
    options: LinkOptions = LinkOptions(),  # noqa: B008 — frozen
) -> tuple[Link, Link]:
    """Two connected links in this process; `a` is the dialling side. Raises like `connect`."""
    wire_a, wire_b = MemoryWire.pair(f"memory:{hello_a.name}", f"memory:{hello_b.name}")
    a = _make_link(wire_a, hello_a, options, link_delay_s, is_dialer=True, coalesce=coalesce)
    b = _make_link(wire_b, hello_b, options, link_delay_s, is_dialer=False, coalesce=coalesce)
    for link, on_message in ((a, on_message_a), (b, on_message_b)):
        if on_message is not None:
            link.on_message = on_message
    await _opened(a)
    await _opened(b)
    return a, b


class Server:
    """A listening socket and the links that came in by it."""

    def __init__(
        self,
        hello: Hello,
        on_link: OnLink,
        transport: Transport,
        gatekeeper: Gatekeeper,
        options: LinkOptions,
        make_link: Callable[..., Link],
        max_unauthenticated: int,
        max_links: int,
    ) -> None:
        self.transport = transport.name
        self.host = ""
        self.port = 0
        self.url = ""
        self.links: set[Link] = set()
        self._on_link = on_link
        self._listen = transport.listen
        self._upgrade = transport.upgrade
        self._handshake_s = options.handshake_s
        self._make_link = make_link
        self._handshaking: set[Link] = set()
        self._rules = GateRules(
            gatekeeper,
            self._admit,
            lambda: len(self.links) + len(self._handshaking) >= max_links,
            max_message_bytes=wire_limit(hello.limits.max_message_bytes),
            handshake_s=options.handshake_s,
            max_unauthenticated=max_unauthenticated,
        )
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, ssl: ssl_module.SSLContext | None) -> None:
        # The gate's own clock starts only when TLS is settled.
        tls = {"ssl": ssl, "ssl_handshake_timeout": self._handshake_s} if ssl is not None else {}
        try:
            server = await self._listen(lambda: Gate(self._rules), host, port, backlog=BACKLOG, **tls)
        except OSError as error:
            raise LinkClosedError(f"cannot listen on {host}:{port}: {_listen_failure(error)}") from None
        self._server = server
        self.host = host
        self.port = server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'wss' if ssl else 'ws'}://{shown}:{self.port}"

    async def close(self, code: str = "drain", reason: str = "the server is closing") -> None:
        """Stop listening, say goodbye on every link, wait until all are gone."""
        if self._server is not None:
            self._server.close()
        self._rules.close()
        links = [*self.links, *self._handshaking]
        await asyncio.gather(*(link.close(code, reason) for link in links))

    def _admit(self, admitted: Admitted) -> None:
        wire = self._upgrade(admitted)
        if wire is None:
            return
        link = self._make_link(wire, permission=admitted.permission, on_open=self._on_open)
        self._handshaking.add(link)
        link.on_ended = self._forget

    def _on_open(self, link: Link) -> None:
        self._handshaking.discard(link)
        self.links.add(link)
        self._on_link(link)

    def _forget(self, link: Link) -> None:
        self._handshaking.discard(link)
        self.links.discard(link)


async def serve(
    host: str,
    port: int,
    *,
    hello: Hello,
    token: str,
    on_link: OnLink,
    transport: str = "auto",
    ssl: ssl_module.SSLContext | None = None,
    allowed_origins: Collection[str] = (),
    insecure: bool = False,
    link_delay_s: float = 0.0,
    coalesce: bool = True,
    max_unauthenticated: int = MAX_UNAUTHENTICATED,
    max_links: int = MAX_LINKS,
    options: LinkOptions = LinkOptions(),  # noqa: B008 — frozen
) -> Server:
    """Listen on `host`:`port` (0: any free port, told by `.port` and `.url`).

    `on_link` is called with each link once its hello has come and fits, before its first message: set on_message and
    on_close there. The token itself gives permission "full", `auth.station_key(token)` "forward". A host other than
    loopback without TLS needs `insecure=True` (LocalProtocolError). LinkClosedError when the port is taken.
    """
    if ssl is None and not insecure and not is_loopback(host):
        raise LocalProtocolError(f"{host}:{port} is not loopback: without TLS that needs insecure=True (--insecure)")
    gatekeeper = Gatekeeper(token, allowed_origins)
    make_link = partial(
        _make_link, hello=hello, options=options, link_delay_s=link_delay_s, coalesce=coalesce, is_dialer=False
    )
    chosen = choose_transport(transport)
    server = Server(hello, on_link, chosen, gatekeeper, options, make_link, max_unauthenticated, max_links)
    await server.listen(host, port, ssl)
    return server


def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _make_link(
    wire: Wire,
    hello: Hello,
    options: LinkOptions,
    link_delay_s: float,
    *,
    is_dialer: bool,
    coalesce: bool,
    permission: Permission = "full",
    on_open: OnLink | None = None,
) -> Link:
    if link_delay_s > 0:
        wire = DelayedWire(wire, link_delay_s)
    return Link(wire, hello, options, is_dialer=is_dialer, coalesce=coalesce, permission=permission, on_open=on_open)


async def _opened(link: Link) -> None:
    try:
        await link.opened()
    except BaseException:
        await link.close("link_closed", "given up during the handshake")
        raise
