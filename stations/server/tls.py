"""TLS of a station: its own certificate, and which ones it trusts when it dials. Contexts are made when needed."""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

from aeonflow.errors import LocalProtocolError

from .options import StationOptions


def server_tls(options: StationOptions) -> ssl.SSLContext | None:
    """The context of `--tls-cert` and `--tls-key`; None without. LocalProtocolError names the files that do not do."""
    cert, key = options.tls_cert, options.tls_key
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise LocalProtocolError(f"--tls-cert {cert}, --tls-key {key}: {error.strerror or error}") from None
    return context


def client_tls(options: StationOptions, url: str) -> ssl.SSLContext | None:
    """How the station at `url` is to be trusted: by `--tls-ca` or the system's certificates; None for ws://."""
    return _trusting(options.tls_ca) if url.startswith("wss:") else None


@functools.cache  # reading the system's certificates takes 20 ms
def _trusting(authorities: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise LocalProtocolError(f"--tls-ca {authorities}: {error.strerror or error}") from None
