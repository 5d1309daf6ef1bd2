"""A hostile peer against real station processes: each of its connections ends, no process does, no answer changes."""

from __future__ import annotations

import asyncio
import pickle
import struct
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from aeonflow import Flags, Frame, FrameDecoder, Hello, station_key
from aeonflow.bands import ATTN, CONTROL, EMBED
from aeonflow.errors import AuthenticationError, VersionMismatchError
from aeonflow.messages import PROTOCOL_VERSION, Drain, Stats, encode
from host import Engine

from .conftest import WAIT_S, running_fleet

HELLO = Hello(PROTOCOL_VERSION, "stranger", "host")
FIN = Flags.FIN


def packed_hello(hello: Hello = HELLO) -> bytes:
    return Frame(0, 0, FIN, encode(hello)).pack()


def header(stream: int, flags: int, length: int) -> bytes:
    return struct.pack(">HIB", stream, 7, flags) + length.to_bytes(3, "big")


# After a valid token and hello: bytes that break the wire's rules. Each must end the connection.
FATAL = {
    "a text message": "hello there",
    "a reserved flag": header(ATTN, 0x40, 0),
    "both reserved flags": header(ATTN, 0xC0, 4) + b"abcd",
    "half a header": b"\xaf\x20\x00",
    "less payload than said": header(ATTN, FIN, 100) + b"x" * 99,
    "more payload than said": header(ATTN, FIN, 4) + b"x" * 9,
    "a pickle": pickle.dumps({"os": "system"}),
    "another hello with another version": packed_hello(msgspec.structs.replace(HELLO, protocol=99)),
}

# Calls that no station can answer. Each is vented, and the connection lives.
REFUSED = {
    "an unknown stream": Frame(0x0BAD, 9, FIN, b"x" * 32),
    "a tensor of noise": Frame(ATTN, 9, FIN, bytes(range(256))),
    "an empty tensor message": Frame(EMBED, 9, FIN, b""),
    "a pickle as a call": Frame(CONTROL, 9, FIN, pickle.dumps(["drain"])),
    "msgpack of another shape": Frame(CONTROL, 9, FIN, msgspec.msgpack.encode({"drain": True})),
}


async def greeted(url: str, token: str) -> ClientConnection:
    """A connection after both hellos."""
    client = await connect(url, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None, compression=None)
    await client.send(packed_hello())
    await client.recv()
    return client


async def test_no_misbehaviour_of_a_peer_harms_the_fleet_or_its_other_hosts(tiny_model: Path) -> None:
    async with (
        asyncio.timeout(2 * WAIT_S),
        running_fleet("layers:2", tiny_model) as fleet,
        Engine.connect(fleet.urls, token=fleet.token) as engine,
    ):
        options = {"max_tokens": 800, "ignore_eos": True, "logits_hash": True}
        pids = [station.pid for station in fleet.stations]
        expected = await engine.generate("Hello", **options).collect()
        unharmed = asyncio.create_task(engine.generate("Hello", **options).collect())
        for url in fleet.urls:
            for payload in FATAL.values():
                client = await greeted(url, fleet.token)
                await client.send(payload)
                await said_until_closed(client)
            client = await greeted(url, fleet.token)
            for frame in REFUSED.values():
                await client.send(frame.pack())
                assert Flags.VENT in await reply_to(client, frame.sequence)
            await client.send(Frame(CONTROL, 10, FIN, encode(Stats())).pack())
            assert Flags.VENT not in await reply_to(client, 10)  # the same connection still serves
            await client.close()
        result = await unharmed
        assert (result.token_ids, result.logits_hash) == (expected.token_ids, expected.logits_hash)
        assert [station.pid for station in fleet.stations] == pids
        assert [station.restarts for station in fleet.stations] == [0, 0]


async def said_until_closed(client: ClientConnection) -> bytes:
    """Everything that still arrives, until the other side has closed."""
    said = b""
    async with asyncio.timeout(WAIT_S):
        try:
            while True:
                message = await client.recv()
                said += message if isinstance(message, bytes) else message.encode()
        except ConnectionClosed:
            return said


async def reply_to(client: ClientConnection, sequence: int) -> Flags:
    """Flags of the first frame that answers `sequence`."""
    async with asyncio.timeout(WAIT_S):
        while True:
            message = await client.recv()
            assert isinstance(message, bytes)
            for frame in FrameDecoder().feed(message):
                if frame.stream_id != 0 and frame.sequence == sequence:
                    return frame.flags


async def test_who_has_no_token_the_wrong_one_or_an_origin_is_refused_before_any_frame(tiny_model: Path) -> None:
    async with asyncio.timeout(WAIT_S), running_fleet("layers:1", tiny_model) as fleet:
        url, token = fleet.urls[0], fleet.token
        refused = [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": f"Basic {token}"}, 401),
            ({"Authorization": f"Bearer {token}", "Origin": "https://evil.example"}, 403),
        ]
        for headers, status in refused:
            with pytest.raises(InvalidStatus) as caught:
                await connect(url, additional_headers=headers, proxy=None)
            assert caught.value.response.status_code == status
        with pytest.raises(AuthenticationError, match="401"):
            async with Engine.connect([url], token="wrong"):
                pass


async def test_the_key_of_a_station_does_not_open_the_fleet(tiny_model: Path) -> None:
    async with asyncio.timeout(WAIT_S), running_fleet("layers:1", tiny_model) as fleet:
        client = await greeted(fleet.urls[0], station_key(fleet.token))
        await client.send(Frame(CONTROL, 3, FIN, encode(Drain())).pack())
        with suppress(ConnectionClosed):
            assert Flags.VENT in await reply_to(client, 3)
        await client.close()
        async with Engine.connect(fleet.urls, token=fleet.token) as engine:
            assert (await engine.status())["ready"]


async def test_another_protocol_version_is_refused_with_both_versions_named(tiny_model: Path) -> None:
    async with asyncio.timeout(WAIT_S), running_fleet("layers:1", tiny_model) as fleet:
        headers = {"Authorization": f"Bearer {fleet.token}"}
        client = await connect(fleet.urls[0], additional_headers=headers, proxy=None)
        await client.send(packed_hello(msgspec.structs.replace(HELLO, protocol=99)))
        said = await said_until_closed(client)
        assert b"99" in said
        assert str(PROTOCOL_VERSION).encode() in said


async def test_stations_of_two_models_are_never_joined(tiny_model: Path, tmp_path: Path) -> None:
    from stations.models.synthetic import build_synthetic

    other = tmp_path / "other"
    build_synthetic("synthetic:layers=4,hidden=64,heads=4,kv_heads=2,ffn=256,vocab=512,context=4096,seed=8", other)
    async with (
        asyncio.timeout(2 * WAIT_S),
        running_fleet("layers:2", tiny_model) as fleet,
        running_fleet("layers:2", other) as strangers,
    ):
        urls = [fleet.urls[0], strangers.urls[1]]
        with pytest.raises((VersionMismatchError, AuthenticationError)):
            async with Engine.connect(urls, token=fleet.token):
                pass
