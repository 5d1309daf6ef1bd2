"""Links to other stations: dialled when first needed, kept, redialled with backoff, never waited for.

A station dials only addresses of installed routes, with the station key, which permits forwarding only. What is to be
sent while a link is being made waits in a bounded queue; when the other side cannot be reached in time the queue is
dropped and `on_lost` told, and the next message starts anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from aeonflow import Link, Message
from aeonflow.assembly import read_message
from aeonflow.errors import (
    AeonflowError,
    AuthenticationError,
    FrameTooLargeError,
    LinkClosedError,
    LocalProtocolError,
    OverloadedError,
    StationLostError,
    VersionMismatchError,
)

from ..core.outgoing import ToStation

logger = logging.getLogger("stations.peers")


class PeerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes. The queue is for what is sent before a link is up."""

    lost_after_s: float = 3.0  # without a connection; then the hosts are told
    backoff_first_s: float = 0.05
    backoff_cap_s: float = 2.0
    max_waiting_messages: int = 1024
    max_waiting_bytes: int = 64 << 20


OnMessage = Callable[[Message], None]
OnClose = Callable[[AeonflowError | None], None]
Dial = Callable[[str, OnMessage, OnClose], Awaitable[Link]]  # url → a link whose hello fits


class _Waiting:
    """A message that waits for its link, its pieces copied: arrays do not outlive their batch."""

    __slots__ = ("message", "num_bytes")

    def __init__(self, message: ToStation) -> None:
        payload = b"".join(message.pieces)
        self.message = message._replace(pieces=(payload,))
        self.num_bytes = len(payload)


class Peer:
    """One other station. `link` is None while there is none."""

    def __init__(self, url: str, peers: Peers) -> None:
        self.url = url
        self.link: Link | None = None
        self._peers = peers
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._failures = 0  # dials in a row that failed
        self._dialling: asyncio.Task[None] | None = None

    def send(self, message: ToStation, *, now: bool = False) -> None:
        """Send as soon as the link is up; `now`: written at once, else with the next flush."""
        link = self.link
        if link is None:
            self._wait(_Waiting(message))
            return
        try:
            sequence = link.next_sequence() if message.sequence is None else message.sequence
            link.send(message.stream, sequence, message.pieces, message.flags, now=now)
        except FrameTooLargeError as error:
            self._peers.on_unsent(message, error)
        except LinkClosedError:  # its on_close is on the way
            self._wait(_Waiting(message))

    def keep_packed(self, frame: memoryview, session: int) -> None:
        """A frame of a message for `session` that its link did not take: it waits for the next one."""
        stream, _, flags, payload = read_message(bytes(frame))
        self._wait(_Waiting(ToStation(self.url, stream, (payload,), flags, session)))

    def flush(self) -> None:
        if self.link is not None:
            self.link.flush()

    def warm(self) -> None:
        """Begin to dial, if there is no link yet."""
        if self.link is None and self._dialling is None:
            self._dialling = asyncio.create_task(self._dial(), name=f"dial {self.url}")

    async def close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)
        link, self.link = self.link, None
        if link is not None:
            link.on_close = None
            await link.close("done")

    def _wait(self, waiting: _Waiting) -> None:
        options = self._peers.options
        if (
            len(self._waiting) >= options.max_waiting_messages
            or self._waiting_bytes + waiting.num_bytes > options.max_waiting_bytes
        ):
            text = f"{len(self._waiting)} messages of {self._waiting_bytes:,} bytes wait for {self.url}"
            self._peers.on_unsent(waiting.message, OverloadedError(text))
            return
        self._waiting.append(waiting)
        self._waiting_bytes += waiting.num_bytes
        self.warm()

    async def _dial(self) -> None:
        options, clock = self._peers.options, asyncio.get_running_loop().time
        deadline = clock() + options.lost_after_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    link = await self._peers.dial(self.url, _nothing_comes_back, self._closed)
                break
            except TimeoutError:
                self._give_up(f"no connection within {options.lost_after_s:g} s")
                return
            except (AuthenticationError, VersionMismatchError, LocalProtocolError) as error:  # trying again is vain
                self._give_up(str(error))
                return
            except AeonflowError as error:
                pause = min(options.backoff_cap_s, options.backoff_first_s * 2.0 ** min(self._failures, 16))
                self._failures += 1
                pause = self._peers.rng.uniform(0.0, pause)
                if clock() + pause >= deadline:
                    self._give_up(str(error))
                    return
                await asyncio.sleep(pause)
            except Exception as error:  # nobody awaits this task: the hosts must hear of a bug, and the next try begin
                logger.exception("dialling %s failed", self.url)
                self._give_up(f"internal error: {type(error).__name__}")
                return
        self._dialling = None
        self._failures = 0
        if link.is_closed:  # between its hello and here
            self._give_up("the connection closed at once")
            return
        self.link = link
        self._peers.on_link(link)
        waiting, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        for item in waiting:
            self.send(item.message)
        self.flush()

    def _give_up(self, reason: str) -> None:
        self._dialling = None
        self._waiting.clear()
        self._waiting_bytes = 0
        self._peers.on_lost(self.url, reason)

    def _closed(self, error: AeonflowError | None) -> None:
        if self.link is not None:
            self.link = None
            self._peers.on_lost(self.url, str(error) if error else "it closed the connection")


class Peers:
    """All successors by url. `on_lost(url, reason)`: the hosts of the sessions concerned are to be told."""

    def __init__(
        self,
        dial: Dial,
        *,
        allowed_urls: Callable[[], set[str]],
        on_link: Callable[[Link], None],
        on_lost: Callable[[str, str], None],
        on_unsent: Callable[[ToStation, AeonflowError], None],
        options: PeerOptions = PeerOptions(),  # noqa: B008 — frozen
        rng: random.Random | None = None,
    ) -> None:
        self.dial = dial
        self.on_link = on_link
        self.on_lost = on_lost
        self.on_unsent = on_unsent
        self.options = options
        self.rng = rng or random.Random()
        self._allowed_urls = allowed_urls
        self._peers: dict[str, Peer] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def links(self) -> list[Link]:
        """The live ones."""
        return [peer.link for peer in self._peers.values() if peer.link is not None]

    def get(self, url: str) -> Peer:
        """The peer at `url`; StationLostError unless it is a successor on an installed route."""
        peer = self._peers.get(url)
        if peer is None:
            if url not in self._allowed_urls():
                raise StationLostError(f"{url} is no successor on any route here")
            peer = self._peers[url] = Peer(url, self)
        return peer

    def retire(self) -> None:
        """Let go of peers that no route names any more: a restarted station may have moved."""
        if not self._peers:
            return
        allowed = self._allowed_urls()
        for url in [url for url in self._peers if url not in allowed]:
            task = asyncio.create_task(self._peers.pop(url).close(), name=f"retire {url}")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        peers, self._peers = self._peers, {}
        await asyncio.gather(*(peer.close() for peer in peers.values()), *self._retiring, return_exceptions=True)


def _nothing_comes_back(message: Message) -> None:
    """Chains are one-way: what a successor says on the link it was dialled by concerns nobody."""
