"""Fixtures that several areas share: models, and fleets started by the shipped launcher."""

from __future__ import annotations

import datetime
import ipaddress
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from host.fleet import Fleet, StationOptions
from host.fleet.state import cache_root
from host.plan import make_plan

TINY_LAYERS = 4
TINY_SPEC = f"synthetic:layers={TINY_LAYERS},hidden=64,heads=4,kv_heads=2,ffn=256,vocab=512,context=4096,seed=7"
VERB_TIMEOUT_S = 300

StartFleet = Callable[..., Awaitable[Fleet]]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a generated llama-type model: 4 layers, hidden 64, vocabulary 512, context 4096; kernels compiled."""
    from stations.models.synthetic import build_synthetic

    folder = tmp_path_factory.mktemp("models") / "tiny"
    build_synthetic(TINY_SPEC, folder)
    run_verb("warm", str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct in the user's cache; imported once when it is missing."""
    folder = cache_root(os.environ) / "models" / "smollm2"
    if not (folder / "card.json").is_file():
        run_verb("import", "smollm2")
    else:
        run_verb("warm", "smollm2")
    return folder


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """`cert, key = certificate("127.0.0.1")`: PEM files of a certificate for IP addresses that is its own authority."""

    def make(*addresses: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aeonflow test")])
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        signed = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        files = tmp_path / "cert.pem", tmp_path / "key.pem"
        for file, data in zip(files, (signed.public_bytes(pem), private), strict=True):
            file.write_bytes(data)
        return files

    return make


def run_verb(*arguments: str) -> None:
    """A verb of the station package, to its end."""
    command = [sys.executable, "-m", "stations", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=VERB_TIMEOUT_S)
    assert done.returncode == 0, (done.stdout[-2000:] + done.stderr[-2000:]).decode("utf-8", "replace")


@pytest.fixture
async def fleet() -> AsyncIterator[StartFleet]:
    """`running = await fleet("trisplit", model_folder)`: stations of a plan, started by the launcher, stopped after.

    Further keywords go to `StationOptions` (kernels, threads, …) and, as `launcher={…}`, to `Fleet`.
    """
    async with AsyncExitStack() as stack:

        async def start(plan: str, model: Path, *, launcher: dict[str, Any] | None = None, **options: Any) -> Fleet:
            layers = _layers_of(model)
            made = make_plan(plan, layers)
            running = Fleet(made.stations, StationOptions(model=str(model), **options), **(launcher or {}))
            return await stack.enter_async_context(running)

        yield start


def _layers_of(model: Path) -> int:
    from stations.models.folder import ModelFolder

    return ModelFolder.open(model).card.num_layers
