"""Where picows or uvloop cannot be imported, all works over websockets and asyncio's loop; numpy is not touched."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from aeonflow.errors import LocalProtocolError
from aeonflow.transport.choice import choose_transport, new_event_loop

PROGRAM = """
import sys
for name in ("picows", "uvloop", "aiofastnet", "numpy", "numba"):
    sys.modules[name] = None  # importing it raises ImportError

import asyncio
import aeonflow
from aeonflow import Hello, connect, new_event_loop, serve
from aeonflow.errors import LocalProtocolError

async def main():
    def on_link(link):
        link.on_message = lambda m: link.send(m.stream, m.sequence, m.payload)
    server = await serve("127.0.0.1", 0, hello=Hello(1, "s", "station"), token="t", on_link=on_link)
    link = await connect(server.url, hello=Hello(1, "h", "host"), token="t")
    reply = await link.call(0xAF20, b"hello", timeout_s=10)
    print(server.transport, link.transport, bytes(reply.payload).decode())
    try:
        await connect(server.url, hello=Hello(1, "h", "host"), token="t", transport="picows")
    except LocalProtocolError as error:
        print(error)
    await link.close()
    await server.close()

with asyncio.Runner(loop_factory=new_event_loop) as runner:
    runner.run(main())
    print(type(runner.get_loop()).__module__)
"""


def test_the_wire_works_without_picows_uvloop_and_numpy() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert first == "websockets websockets hello"
    assert second.startswith("transport 'picows' cannot be imported here: ")
    assert third == "asyncio.unix_events"


def test_importing_the_wire_imports_no_numpy() -> None:
    program = "import sys, aeonflow; print([m for m in ('numpy', 'numba', 'stations', 'host') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_without_picows_auto_is_websockets_and_picows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "aeonflow.transport.picows", raising=False)
    monkeypatch.setitem(sys.modules, "picows", None)
    assert choose_transport("auto").name == "websockets"
    with pytest.raises(LocalProtocolError, match="'picows' cannot be imported here"):
        choose_transport("picows")


def test_the_event_loop_is_uvloops_where_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = new_event_loop()
    loop.close()
    assert type(loop).__module__ == "uvloop"
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.SelectorEventLoop)


def test_auto_takes_picows_where_it_can_be_imported() -> None:
    assert choose_transport("auto").name == "picows"
    assert choose_transport("websockets").name == "websockets"


def test_an_unknown_transport_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LocalProtocolError, match="'carrier-pigeon': known are auto, websockets, picows"):
        choose_transport("carrier-pigeon")
