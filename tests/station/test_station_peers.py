"""Links to other stations: dialled when needed, in order, with backoff, given up in time, let go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aeonflow import Flags, Hello, Link, Message, Server, bands, connect, serve, station_key
from aeonflow.errors import AeonflowError, StationLostError
from aeonflow.messages import PROTOCOL_VERSION
from stations.core.outgoing import ToStation
from stations.server.peers import PeerOptions, Peers

from .servers import TOKEN, WAIT_S

HELLO = Hello(PROTOCOL_VERSION, "s", "station")


class Neighbour:
    """A server that keeps what it is sent."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        self.links = 0
        self.server: Server | None = None

    async def start(self, port: int = 0) -> str:
        self.server = await serve(
            "127.0.0.1", port, hello=HELLO, token=TOKEN, on_link=self._admit, transport="websockets"
        )
        return self.server.url

    def _admit(self, link: Link) -> None:
        self.links += 1
        link.on_message = self.received.put_nowait

    async def payloads(self, count: int) -> list[bytes]:
        async with asyncio.timeout(WAIT_S):
            return [bytes((await self.received.get()).payload) for _ in range(count)]


class Desk:
    """Peers, and what they report."""

    def __init__(self, allowed: set[str], key: str, options: PeerOptions) -> None:
        self.allowed = allowed
        self.lost: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.unsent: list[AeonflowError] = []
        self.dials = 0

        async def dial(url: str, on_message: Any, on_close: Any) -> Link:
            self.dials += 1
            return await connect(
                url, hello=HELLO, token=key, transport="websockets", on_message=on_message, on_close=on_close
            )

        self.peers = Peers(
            dial,
            allowed_urls=lambda: self.allowed,
            on_link=lambda link: None,
            on_lost=lambda url, reason: self.lost.put_nowait((url, reason)),
            on_unsent=lambda message, error: self.unsent.append(error),
            options=options,
        )

    def send(self, url: str, *payloads: bytes) -> None:
        for payload in payloads:
            self.peers.get(url).send(ToStation(url, bands.DOWN, (payload,), Flags.FIN, 9))


@asynccontextmanager
async def desk(*urls: str, key: str = station_key(TOKEN), **options: Any) -> AsyncIterator[Desk]:
    made = Desk(set(urls), key, PeerOptions(**options))
    try:
        yield made
    finally:
        await made.peers.close()
        assert made.peers.links == []


@pytest.fixture
async def neighbour() -> AsyncIterator[Neighbour]:
    made = Neighbour()
    yield made
    if made.server is not None:
        await made.server.close()


async def test_what_is_sent_before_the_link_is_up_arrives_first_and_in_order(neighbour: Neighbour) -> None:
    url = await neighbour.start()
    async with desk(url) as sender:
        sender.send(url, b"0", b"1", b"2")
        assert await neighbour.payloads(3) == [b"0", b"1", b"2"]
        sender.send(url, b"3")
        sender.peers.get(url).flush()
        assert await neighbour.payloads(1) == [b"3"]
        assert (sender.dials, neighbour.links) == (1, 1)


async def test_a_neighbour_that_comes_up_late_is_dialled_until_it_is_there(neighbour: Neighbour) -> None:
    url = await neighbour.start()
    assert neighbour.server is not None
    port = neighbour.server.port
    await neighbour.server.close()
    async with desk(url, lost_after_s=WAIT_S, backoff_first_s=0.01, backoff_cap_s=0.05) as sender:
        sender.send(url, b"early")
        await _until(lambda: sender.dials >= 3)
        await neighbour.start(port)
        assert await neighbour.payloads(1) == [b"early"]
        assert sender.lost.empty()


async def test_a_neighbour_that_refuses_the_key_is_lost_at_once(neighbour: Neighbour) -> None:
    url = await neighbour.start()
    async with desk(url, key="another-fleets-key", lost_after_s=WAIT_S) as sender:
        sender.send(url, b"x")
        lost_url, reason = await asyncio.wait_for(sender.lost.get(), WAIT_S)
        assert lost_url == url
        assert "401" in reason
        assert sender.dials == 1


@pytest.mark.parametrize(("url", "named"), [("ws://a..b:1", "host"), ("http://127.0.0.1:1", "scheme")])
async def test_an_address_that_is_none_is_given_up_at_once(url: str, named: str) -> None:
    async with desk(url, lost_after_s=WAIT_S) as sender:
        for tries in (1, 2):  # the next message starts anew
            sender.send(url, b"x")
            lost_url, reason = await asyncio.wait_for(sender.lost.get(), WAIT_S)
            assert lost_url == url
            assert named in reason
            assert sender.dials == tries


async def test_a_dial_that_fails_in_an_unforeseen_way_is_told_and_the_next_message_starts_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk("ws://a:1", lost_after_s=WAIT_S) as sender:

        async def dial(url: str, on_message: Any, on_close: Any) -> Link:
            sender.dials += 1
            raise ZeroDivisionError("a bug")

        sender.peers.dial = dial
        for tries in (1, 2):
            sender.send("ws://a:1", b"x")
            told = await asyncio.wait_for(sender.lost.get(), WAIT_S)
            assert told == ("ws://a:1", "internal error: ZeroDivisionError")
            assert sender.dials == tries
    assert "dialling ws://a:1 failed" in caplog.text


async def test_an_address_that_no_route_names_is_never_dialled(neighbour: Neighbour) -> None:
    url = await neighbour.start()
    async with desk() as sender:
        with pytest.raises(StationLostError, match="no successor on any route"):
            sender.send(url, b"x")
        assert sender.dials == 0


async def test_a_peer_whose_route_is_gone_is_let_go(neighbour: Neighbour) -> None:
    url = await neighbour.start()
    async with desk(url) as sender:
        sender.send(url, b"x")
        await neighbour.payloads(1)
        sender.peers.retire()
        assert len(sender.peers.links) == 1
        sender.allowed.clear()
        sender.peers.retire()
        assert sender.peers.links == []
        assert neighbour.server is not None
        await _until(lambda: not neighbour.server.links)
        assert sender.lost.empty(), "nobody is to be told"


async def test_closing_ends_a_dial_under_way(neighbour: Neighbour) -> None:
    url = await neighbour.start()
    assert neighbour.server is not None
    await neighbour.server.close()
    async with desk(url, lost_after_s=WAIT_S) as sender:
        sender.send(url, b"x")
        await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("dial")] == []


async def _until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_true():  # noqa: ASYNC110 — what is waited for has no event
            await asyncio.sleep(0.005)
