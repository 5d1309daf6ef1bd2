"""`--tls-ca`: stations behind a private certificate, reached from the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from .conftest import Ended

Run = Callable[..., Ended]
Start = Callable[..., "subprocess.Popen[bytes]"]


def test_stations_behind_a_private_certificate_are_reached_by_those_who_trust_it(
    aeonflow: Run, cli: Run, started: Start, tmp_path: Path, certificate: Callable[..., tuple[Path, Path]]
) -> None:
    cert, key = map(str, certificate("127.0.0.1"))
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    tls = ("--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
    station = started("station", "--model", "tiny", "--token-file", str(secret), *tls)
    assert station.stdout is not None
    url = json.loads(station.stdout.readline())["url"]
    assert url.startswith("wss://127.0.0.1:")
    fleet = ("--fleet", url, "--token-file", str(secret))
    options = ("--max-tokens", "4", "--ignore-eos", "--json", "Hello")

    trusted = aeonflow("run", *fleet, "--tls-ca", cert, *options)
    assert trusted.code == 0, trusted.err
    alone = aeonflow("run", "--model", "tiny", *options)
    assert json.loads(trusted.out)["token_ids"] == json.loads(alone.out)["token_ids"]
    assert json.loads(cli("status", *fleet, "--tls-ca", cert, "--json").out)["ready"] is True
    assert cli("doctor", *fleet, "--tls-ca", cert).code == 0

    doubted = cli("run", *fleet, *options)
    assert doubted.code == 1
    assert "certificate" in doubted.error
    missing = cli("run", *fleet, "--tls-ca", "none.pem", *options)
    assert (missing.code, missing.error) == (
        2,
        "error: --tls-ca: certificate authority none.pem: No such file or directory",
    )
