"""The station as a process: readiness, refusals in one line, signals, parents that die, strangers on its port."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aeonflow import Link, bands, connect
from aeonflow.errors import AuthenticationError, LinkClosedError
from aeonflow.messages import Drain, GetCard, InstallRoute, Open, Route, StationAddress, Stats, decode_reply, encode
from aeonflow.tensors import Port, Want, pack_tensors, unpack_tensors
from stations.models.documents import decode_bundle
from stations.models.folder import ModelFolder

from .cores import ROUTE, PlainModel, carriers_of, f32, ids_tensor, tensor
from .servers import HOST_HELLO, TOKEN

WAIT_S = 60.0
IDS = [17, 300, 511, 0]


class Process:
    """A running station process and its readiness line."""

    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready

    async def end(self) -> int:
        return await asyncio.wait_for(self.process.wait(), WAIT_S)

    async def connect(self, token: str = TOKEN) -> Link:
        return await connect(self.ready["url"], hello=HOST_HELLO, token=token)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "stations", "station", "--kernels", "reference", *arguments]


def environment(home: Path | None = None) -> dict[str, str]:
    return {**os.environ, "AEONFLOW_TOKEN": TOKEN, **({"AEONFLOW_HOME": str(home)} if home else {})}


@asynccontextmanager
async def station(*arguments: str, home: Path | None = None) -> AsyncIterator[Process]:
    """A station process, ready; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *command("--exit-with-parent", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(home),
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), WAIT_S)
        ready = json.loads(line)
        assert ready["event"] == "ready", ready
        yield Process(process, ready)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def refusal(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Start a station that cannot start; returns the reason after checking how it is told."""
    done = subprocess.run(
        command(*arguments), env=env or environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S
    )
    assert done.returncode in (1, 2), done
    (event,) = map(json.loads, done.stdout.splitlines())
    assert event["event"] == "error"
    assert done.stderr.decode() == f"station: {event['message']}\n", "one line, no traceback"
    return str(event["message"])


async def embed(link: Link) -> Any:
    """A relayed call; the session is opened first."""
    await link.call(bands.CONTROL, encode(Open(9, 0, 64)), timeout_s=WAIT_S)
    reply = await link.call(bands.EMBED, pack_tensors([ids_tensor(IDS, route=0)]), timeout_s=WAIT_S)
    return f32(unpack_tensors(reply.payload)[0])


async def test_a_ready_station_says_where_and_what_it_is_and_serves_a_pass(
    model: ModelFolder, plain: PlainModel
) -> None:
    async with station("--model", str(model.path), "--name", "alone") as running:
        ready = running.ready
        assert (ready["name"], ready["pid"]) == ("alone", running.process.pid)
        assert ready["url"] == f"ws://127.0.0.1:{ready['port']}"
        assert ready["roles"] == ["embed", "block:0-2", "head"]
        assert ready["fingerprint"] == model.card.fingerprint
        link = await running.connect()
        assert link.remote.limits.max_rows == 128
        assert link.remote.kernels == "reference"
        x = tensor(Port.X, await embed(link), route=0)
        reply = await link.call(bands.BLOCK, pack_tensors([x]), timeout_s=WAIT_S)
        x = tensor(Port.X, f32(unpack_tensors(reply.payload)[0]), route=0, want=Want.ALL)
        reply = await link.call(bands.HEAD, pack_tensors([x]), timeout_s=WAIT_S)
        np.testing.assert_allclose(f32(unpack_tensors(reply.payload)[0]), plain.logits(IDS), atol=1e-4)
        await link.close()


@pytest.mark.parametrize("asked_by", ["signal", "host"])
async def test_a_station_told_to_leave_says_goodbye_and_exits_with_0(model: ModelFolder, asked_by: str) -> None:
    async with station("--model", str(model.path), "--roles", "embed") as running:
        closed: asyncio.Queue[Any] = asyncio.Queue()
        link = await running.connect()
        link.on_close = closed.put_nowait
        if asked_by == "signal":
            running.process.send_signal(signal.SIGTERM)
        else:
            await link.call(bands.CONTROL, encode(Drain()), timeout_s=WAIT_S)
        assert await running.end() == 0
        assert await asyncio.wait_for(closed.get(), WAIT_S) is None
        assert link.goodbye is not None
        assert link.goodbye.code == "drain"


async def test_a_session_under_way_does_not_hold_up_a_drain_beyond_its_bound(model: ModelFolder) -> None:
    async with station("--model", str(model.path), "--roles", "embed", "--drain-s", "0") as running:
        link = await running.connect()
        await embed(link)
        running.process.send_signal(signal.SIGTERM)
        assert await running.end() == 0
        assert running.process.stderr is not None
        assert b"work unfinished" in await running.process.stderr.read()


async def test_a_station_leaves_when_its_stdin_ends(model: ModelFolder) -> None:
    async with station("--model", str(model.path), "--roles", "embed") as running:
        assert running.process.stdin is not None
        running.process.stdin.close()
        assert await running.end() == 0


async def test_a_station_leaves_when_its_launcher_is_killed(model: ModelFolder) -> None:
    launcher = (
        "import subprocess, sys, time\n"
        "pipe = subprocess.PIPE\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=pipe, stdout=pipe, start_new_session=True)\n"
        "print(child.stdout.readline().decode(), end='', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", launcher, *command("--exit-with-parent", "--model", str(model.path), "--roles", "embed"),
        stdout=asyncio.subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    ready = json.loads(await asyncio.wait_for(process.stdout.readline(), WAIT_S))
    orphan = psutil.Process(ready["pid"])
    process.kill()
    await process.communicate()
    psutil.wait_procs([orphan], timeout=WAIT_S)
    assert not psutil.pid_exists(ready["pid"]) or orphan.status() == psutil.STATUS_ZOMBIE


def test_a_station_that_has_not_started_yet_leaves_with_its_launcher_too(model: ModelFolder) -> None:
    done = subprocess.run(
        command("--exit-with-parent", "--model", str(model.path)), env=environment(), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode in (0, 3)


def test_a_port_in_use_is_told_in_one_line(model: ModelFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reason = refusal("--model", str(model.path), "--roles", "embed", "--listen", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in reason
    assert "in use" in reason


@pytest.fixture
def partial(model: ModelFolder, tmp_path: Path) -> Path:
    """A copy of the model without two of its weight files."""
    for file in model.path.iterdir():
        if file.name not in ("attn.001.safetensors", "down.002.safetensors"):
            (tmp_path / file.name).symlink_to(file)
    return tmp_path


REFUSALS: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "an unknown model": (lambda _: ["--model", "nobody"], "'nobody' is not in"),
    "layers the model does not have": (lambda m: ["--model", str(m), "--roles", "attn:0-3"], "the model has 0-2"),
    "an open network without TLS": (
        lambda m: ["--model", str(m), "--roles", "embed", "--listen", "0.0.0.0:0"], "--insecure",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_station_refuses_to_start_with(
    model: ModelFolder, arguments: Callable[[Path], list[str]], reason: str
) -> None:
    assert reason in refusal(*arguments(model.path))


def test_a_station_without_a_token_does_not_start(model: ModelFolder) -> None:
    env = {name: value for name, value in os.environ.items() if name != "AEONFLOW_TOKEN"}
    assert "--token-file or set AEONFLOW_TOKEN" in refusal("--model", str(model.path), env=env)


def test_missing_weights_are_named(partial: Path) -> None:
    reason = refusal("--model", str(partial))
    assert "attn.001.safetensors, down.002.safetensors" in reason
    assert "--weights-from" in reason


async def test_missing_weights_are_fetched_from_another_station_before_it_is_ready(
    model: ModelFolder, partial: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with AsyncExitStack() as stack:
        whole = await stack.enter_async_context(station("--model", str(model.path)))
        url = whole.ready["url"]
        filled = await stack.enter_async_context(station("--model", str(partial), "--weights-from", url))
        assert filled.ready["fingerprint"] == model.card.fingerprint
        empty = ["--model", "tiny", "--roles", "embed,attn:1-1", "--weights-from", url]
        fetched = await stack.enter_async_context(station(*empty, home=home))
        links = [await running.connect() for running in (whole, fetched)]
        rows = [await embed(link) for link in links]
        assert np.array_equal(rows[0], rows[1])
        card = await links[1].call(bands.WEIGHTS, encode(GetCard()), timeout_s=WAIT_S)
        assert decode_bundle(card.payload).card == model.card
        for link in links:
            await link.close()
    ModelFolder.open(partial).verify()
    kept = sorted(path.name for path in (home / "models" / "tiny").glob("*.safetensors"))
    assert kept == ["attn.001.safetensors", "embed.safetensors"]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "station")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


async def test_a_chain_over_tls_gives_the_same_logits(
    model: ModelFolder, plain: PlainModel, certificate: tuple[Path, Path]
) -> None:
    cert, key = map(str, certificate)
    tls = ["--tls-cert", cert, "--tls-key", key, "--tls-ca", cert]
    roles = ["embed,block:0-2", "head"]
    context = ssl.create_default_context(cafile=cert)
    answers: asyncio.Queue[Any] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        addresses, links = [], []
        for index, role in enumerate(roles):
            running = await stack.enter_async_context(station("--model", str(model.path), "--roles", role, *tls))
            assert running.ready["url"].startswith("wss://127.0.0.1:")
            addresses.append(StationAddress(f"s{index}", running.ready["url"]))
            links.append(
                await connect(
                    running.ready["url"], hello=HOST_HELLO, token=TOKEN, ssl=context, on_message=answers.put_nowait
                )
            )
        route = Route(ROUTE, 3, tuple(addresses), carriers_of(roles, 3))
        for index, link in enumerate(links):
            for request in (InstallRoute(route, index), Open(9, ROUTE, 64)):
                await link.call(bands.CONTROL, encode(request), timeout_s=WAIT_S)
        links[0].send(bands.EMBED, links[0].next_sequence(), pack_tensors([ids_tensor(IDS, want=Want.ALL)]))
        (logits,) = unpack_tensors((await asyncio.wait_for(answers.get(), WAIT_S)).payload)
        np.testing.assert_allclose(f32(logits), plain.logits(IDS), atol=1e-4)
        assert logits.hop == 3
        for link in links:
            await link.close()


async def test_strangers_are_turned_away_and_the_station_serves_on(model: ModelFolder) -> None:
    async with station("--model", str(model.path), "--roles", "embed") as running:
        strangers = []
        for garbage in (b"\x16\x03\x01\x00\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000, b""):
            _, writer = await asyncio.open_connection("127.0.0.1", running.ready["port"])
            writer.write(garbage)
            await writer.drain()
            strangers.append(writer)
        with pytest.raises(AuthenticationError):
            await running.connect("another-secret")
        link = await running.connect()
        for payload in (b"", b"\x80\x04\x95garbage", b"\xff" * 5000):
            for stream in (bands.EMBED, bands.CONTROL, 0x4242):
                link.send(stream, link.next_sequence(), payload)
        reply = await link.call(bands.CONTROL, encode(Stats()), timeout_s=WAIT_S)
        assert decode_reply(reply.payload).pid == running.process.pid
        link.send(bands.CONNECTION, 0, b"\xff")
        with pytest.raises(LinkClosedError):
            await link.call(bands.CONTROL, encode(Stats()), timeout_s=WAIT_S)
        again = await running.connect()
        assert len(await embed(again)) == len(IDS)
        await again.close()
        for writer in strangers:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
