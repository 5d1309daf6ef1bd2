"""TLS contexts from certificate files: TLS 1.2 or later, host names checked, errors that name the files."""

from __future__ import annotations

import ssl
from pathlib import Path

from ..errors import LocalProtocolError

PathLike = str | Path


def server_context(cert: PathLike, key: PathLike, client_ca: PathLike | None = None) -> ssl.SSLContext:
    """For `serve(ssl=…)`: the chain in `cert`, its `key`; with `client_ca`, clients must show a certificate of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, cert, key)
    if client_ca is not None:
        _load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: PathLike | None = None, cert: PathLike | None = None, key: PathLike | None = None
) -> ssl.SSLContext:
    """For `connect(ssl=…)`: trust `ca`, or the system's authorities; `cert` and `key` for servers that ask for one."""
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        _load_authorities(context, ca)
    if cert is not None:
        _load_chain(context, cert, key)
    return context


def _load_chain(context: ssl.SSLContext, cert: PathLike, key: PathLike | None) -> None:
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise LocalProtocolError(f"certificate {cert}, key {key}: {_reason(error)}") from None


def _load_authorities(context: ssl.SSLContext, ca: PathLike) -> None:
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise LocalProtocolError(f"certificate authority {ca}: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM, or certificate and key do not match"
    return error.strerror or str(error)
