"""The time before a link is open: one hello is awaited, for so long and no longer, and has to fit.

Until it has come the peer is a stranger with a token: nothing of it is kept but one small frame at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .errors import AeonflowError, LinkClosedError, RemoteProtocolError
from .handshake import check_limits, negotiate
from .link_options import LinkOptions
from .messages import Hello, Limits


class Opening:
    """`remote` is the peer's hello once it has come; `late` is told when it has not in `options.handshake_s`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local: Hello,
        peer_url: str,
        options: LinkOptions,
        late: Callable[[AeonflowError], None],
    ) -> None:
        self.remote: Hello | None = None
        self._local = local
        self._peer_url = peer_url
        self._options = options
        self._late = late
        self._opened: asyncio.Future[None] = loop.create_future()
        self._opened.add_done_callback(lambda done: done.cancelled() or done.exception())  # only dialers await it
        self._timer = loop.call_later(options.handshake_s, self._time_is_up)

    def take(self, remote: Hello) -> Limits:
        """The peer's hello: the limits that hold from now on. Raises why it does not fit, or comes a second time."""
        if self.remote is not None:
            raise RemoteProtocolError(f"second hello from {remote.kind} {remote.name!r}")
        self._options.check(self._local, remote)
        check_limits(remote.limits)
        self.remote = remote
        self._timer.cancel()
        return negotiate(self._local.limits, remote.limits)

    def done(self) -> None:
        """The link is open."""
        if not self._opened.done():
            self._opened.set_result(None)

    def ended(self, error: AeonflowError) -> None:
        """The link has closed; who still waits for it to open is told why."""
        self._timer.cancel()
        if not self._opened.done():
            self._opened.set_exception(error)

    async def wait(self) -> None:
        """Until the link is open; raises why it will not be."""
        await asyncio.shield(self._opened)

    def _time_is_up(self) -> None:
        self._late(LinkClosedError(f"{self._peer_url}: no hello within {self._options.handshake_s} s"))
