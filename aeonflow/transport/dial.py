"""What every dialling transport shares: the URL, TLS by its scheme, and failures told as errors of this package."""

from __future__ import annotations

import ssl as ssl_module
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..errors import AeonflowError, AuthenticationError, LinkClosedError, LocalProtocolError
from .base import Wire

MAX_LABEL_CHARS = 63  # of a host's name, between two dots (RFC 1035)
MAX_QUOTED_CHARS = 200  # of a foreign server's answer in an error message


class Target(NamedTuple):
    """Where to dial, checked. `ssl` is None for ws://."""

    url: str
    host: str
    port: int
    ssl: ssl_module.SSLContext | None
    headers: dict[str, str]
    max_message_bytes: int  # of one WebSocket message
    timeout_s: float


Dialler = Callable[[Target], Awaitable[Wire]]


def make_target(
    url: str, token: str, ssl: ssl_module.SSLContext | None, max_message_bytes: int, timeout_s: float
) -> Target:
    """Check `url` (ws:// or wss://, a host, no user, no fragment) and settle TLS; LocalProtocolError otherwise."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LocalProtocolError(f"{url}: not a URL: {error}") from None
    if parts.scheme not in ("ws", "wss"):
        raise LocalProtocolError(f"{url}: the scheme must be ws or wss")
    if not parts.hostname or not url.isascii() or not _is_name(parts.hostname):
        raise LocalProtocolError(f"{url}: a host in ASCII is needed, its labels of 1 to {MAX_LABEL_CHARS} characters")
    if parts.username is not None or parts.fragment:
        raise LocalProtocolError(f"{parts.scheme}://{parts.hostname}: a user or a fragment has no place in the URL")
    if parts.scheme == "wss":
        ssl = ssl or ssl_module.create_default_context()
    elif ssl is not None:
        raise LocalProtocolError(f"{url}: TLS options need a wss:// URL")
    headers = {"Authorization": f"Bearer {token}"}
    return Target(url, parts.hostname, port or (443 if ssl else 80), ssl, headers, max_message_bytes, timeout_s)


def _is_name(host: str) -> bool:
    """Can a resolver be asked for it? The system's own raises UnicodeError for other labels, which is no OSError."""
    return all(1 <= len(label) <= MAX_LABEL_CHARS for label in host.removesuffix(".").split("."))


def http_refusal(url: str, status: int, body: str) -> AeonflowError:
    """The error for an HTTP answer other than the upgrade. Redirects are not followed."""
    quoted = " ".join(body.split())[:MAX_QUOTED_CHARS]
    if status in (401, 403):
        return AuthenticationError(f"{url}: HTTP {status}: {quoted or 'not authorized'}")
    if 300 <= status < 400:
        return LinkClosedError(f"{url}: HTTP {status}: redirects are not followed")
    return LinkClosedError(f"{url}: HTTP {status} instead of an upgrade{f': {quoted}' if quoted else ''}")


def connection_failure(url: str, error: OSError) -> LinkClosedError:
    """The error for a TCP or TLS connection that was not made."""
    if isinstance(error, ssl_module.SSLCertVerificationError):
        return LinkClosedError(f"{url}: the certificate is not trusted: {error.verify_message}")
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError):
        reason = "connection refused"
    elif isinstance(error, ConnectionResetError) and url.startswith("wss://"):
        reason = "closed during the TLS handshake; does it serve ws://?"
    return LinkClosedError(f"{url}: cannot connect: {reason}")
