"""Which address a dial takes: those of its host in turn, IPv6 ones too."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from aeonflow import Link, connect, serve
from aeonflow.bands import ATTN
from aeonflow.errors import LinkClosedError

from .peers import SOCKET_PAIRS, TOKEN, WAIT_S, hello, serving

IPV4, IPV6 = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
ELSEWHERE = (socket.AF_INET, "127.0.0.2")  # loopback too, where nobody listens


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[socket.AddressFamily, str]) -> None:
    """Let every name have these addresses, in this order."""

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (at, port)) for family, at in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("transport", ["websockets", "picows"])
async def test_addresses_that_nobody_listens_on_are_passed_over(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(transport) as (server, _):
        url = f"ws://station.example:{server.port}"
        resolve_to(monkeypatch, IPV6, ELSEWHERE, IPV4)
        link = await connect(url, hello=hello("h", "host"), token=TOKEN, transport=transport)
        assert link.peer_url == url
        await link.close()
        resolve_to(monkeypatch, IPV6, ELSEWHERE)
        with pytest.raises(LinkClosedError, match=r"station\.example:\d+: cannot connect: "):
            await connect(url, hello=hello("h", "host"), token=TOKEN, transport=transport)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("transports", SOCKET_PAIRS, ids="-".join)
async def test_messages_travel_over_ipv6(transports: tuple[str, str]) -> None:
    def echo(link: Link) -> None:
        link.on_message = lambda m: link.send(m.stream, m.sequence, m.payload)

    server = await serve("::1", 0, hello=hello(), token=TOKEN, on_link=echo, transport=transports[1])
    assert server.url == f"ws://[::1]:{server.port}"
    link = await connect(server.url, hello=hello("h", "host"), token=TOKEN, transport=transports[0])
    assert (await link.call(ATTN, b"six", timeout_s=WAIT_S)).payload == b"six"
    await link.close()
    await server.close()
