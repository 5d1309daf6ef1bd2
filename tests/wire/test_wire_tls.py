"""wss:// with certificates made for the test, over all pairs of transports."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import ssl
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aeonflow import LinkOptions, connect, new_event_loop
from aeonflow.bands import ATTN
from aeonflow.errors import LinkClosedError, LocalProtocolError
from aeonflow.transport.tls import client_context, server_context

from .peers import SOCKET_PAIRS, TOKEN, WAIT_S, hello, serving


class Certificate:
    """A self-signed certificate for 127.0.0.1 in PEM files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.cert, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .sign(key, hashes.SHA256())
        )
        self.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("other"), "other")


@pytest.mark.parametrize("transports", SOCKET_PAIRS, ids="-".join)
async def test_messages_travel_over_tls(transports: tuple[str, str], ours: Certificate) -> None:
    payload = bytes(range(256)) * 4000
    async with serving(transports[1], ssl=server_context(ours.cert, ours.key)) as (server, recorder):
        assert server.url.startswith("wss://127.0.0.1:")
        link = await connect(
            server.url,
            hello=hello("h", "host"),
            token=TOKEN,
            transport=transports[0],
            ssl=client_context(ours.cert),
        )
        at_server = await recorder.link()
        at_server.on_message = lambda m: at_server.send(m.stream, m.sequence, m.payload)
        for size in (1, 20_000, len(payload)):
            reply = await link.call(ATTN, payload[:size], timeout_s=WAIT_S)
            assert reply.payload == payload[:size]
        assert at_server.peer_url.startswith("wss://")
        await link.close()


@pytest.mark.parametrize("transport", ["websockets", "picows"])
async def test_an_untrusted_certificate_is_refused(transport: str, ours: Certificate, other: Certificate) -> None:
    async with serving(transport, ssl=server_context(ours.cert, ours.key)) as (server, _):
        with pytest.raises(LinkClosedError, match=r"the certificate is not trusted: self.signed certificate"):
            await connect(
                server.url, hello=hello("h", "host"), token=TOKEN, transport=transport, ssl=client_context(other.cert)
            )
        with pytest.raises(LinkClosedError, match="not trusted"):
            await connect(server.url, hello=hello("h", "host"), token=TOKEN, transport=transport)


async def test_a_server_may_ask_clients_for_a_certificate(ours: Certificate, other: Certificate) -> None:
    async with serving(ssl=server_context(ours.cert, ours.key, client_ca=other.cert)) as (server, _):
        known = client_context(ours.cert, other.cert, other.key)
        link = await connect(server.url, hello=hello("h", "host"), token=TOKEN, ssl=known)
        await link.close()
        with pytest.raises(LinkClosedError):
            await connect(server.url, hello=hello("h", "host"), token=TOKEN, ssl=client_context(ours.cert))


@pytest.mark.parametrize("transport", ["websockets", "picows"])
async def test_a_client_that_never_begins_tls_is_cut_off_in_time(transport: str, ours: Certificate) -> None:
    patience = LinkOptions(handshake_s=0.1)
    async with serving(transport, ssl=server_context(ours.cert, ours.key), options=patience) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()


async def test_a_plain_client_of_a_tls_server_is_told_something(ours: Certificate) -> None:
    async with serving(ssl=server_context(ours.cert, ours.key)) as (server, _):
        with pytest.raises(LinkClosedError):
            await connect(server.url.replace("wss", "ws"), hello=hello("h", "host"), token=TOKEN)


@pytest.mark.parametrize("has_uvloop", [True, False])
@pytest.mark.parametrize("transport", ["websockets", "picows"])
def test_handshakes_that_fail_leave_nothing_in_the_log(
    transport: str,
    has_uvloop: bool,
    ours: Certificate,
    other: Certificate,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_uvloop:
        monkeypatch.setitem(sys.modules, "uvloop", None)

    async def dial(url: str, context: ssl.SSLContext | None) -> None:
        link = await connect(url, hello=hello("h", "host"), token=TOKEN, transport=transport, ssl=context)
        await link.close()

    async def refused() -> None:
        async with (
            serving(transport, ssl=server_context(ours.cert, ours.key)) as (over_tls, _),
            serving(transport) as (plain, _),
        ):
            for url, context, said in (
                (over_tls.url, client_context(other.cert), "not trusted"),
                (over_tls.url.replace("wss", "ws"), None, "closed|no WebSocket answers"),
                (plain.url.replace("ws", "wss"), client_context(ours.cert), "TLS handshake|SSL"),
            ):
                with pytest.raises(LinkClosedError, match=said):
                    await dial(url, context)
            await dial(over_tls.url, client_context(ours.cert))  # by now the server has seen the others leave

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(refused())
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_files_that_do_not_do_are_named(tmp_path: Path, ours: Certificate, other: Certificate) -> None:
    text = tmp_path / "text.pem"
    text.write_text("not PEM")
    with pytest.raises(LocalProtocolError, match=r"missing.pem.*No such file"):
        server_context(tmp_path / "missing.pem", ours.key)
    with pytest.raises(LocalProtocolError, match=r"text.pem"):
        server_context(text, ours.key)
    with pytest.raises(LocalProtocolError, match="KEY_VALUES_MISMATCH"):
        server_context(ours.cert, other.key)
    with pytest.raises(LocalProtocolError, match=r"authority .*text.pem"):
        client_context(text)
