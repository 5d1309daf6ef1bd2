"""TLS of a station: its own certificate, and which ones it trusts when it dials. Contexts are made when needed."""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

from aeonflow.transport.tls import client_context, server_context

from .options import StationOptions


def server_tls(options: StationOptions) -> ssl.SSLContext | None:
    """The context of `--tls-cert` and `--tls-key`; None without. LocalProtocolError names the files that do not do."""
    cert, key = options.tls_cert, options.tls_key
    return server_context(cert, key) if cert is not None and key is not None else None


def client_tls(options: StationOptions, url: str) -> ssl.SSLContext | None:
    """How the station at `url` is to be trusted: by `--tls-ca` or the system's certificates; None for ws://."""
    return _trusting(options.tls_ca) if url.startswith("wss:") else None


@functools.cache  # reading the system's certificates takes 20 ms
def _trusting(authorities: Path | None) -> ssl.SSLContext:
    return client_context(authorities)
