"""Who may connect: the fleet's secret, the station key made from it, and the checks before any frame.

Pure: a request's headers in, a decision out (`docs/protocol.md`, *Authentication*). Tokens are compared in constant
time, on loopback too: a page in a browser can open ws://127.0.0.1.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from blake3 import blake3

from .errors import LocalProtocolError

Permission = Literal["full", "forward"]


class Refusal(NamedTuple):
    """An HTTP answer instead of an upgrade."""

    status: int
    reason: str


def station_key(secret: str) -> str:
    """The token with which stations dial each other: 64 hex digits, blake3("station") keyed by blake3(secret).

    It permits forwarding only; the secret cannot be computed from it.
    """
    return blake3(b"station", key=blake3(secret.encode()).digest()).hexdigest()


def check_token(token: str) -> str:
    """`token` itself; LocalProtocolError when it is empty or cannot stand in an Authorization header."""
    if not token:
        raise LocalProtocolError("token: an empty one is no secret; every connection needs a token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise LocalProtocolError("token: only printable ASCII without spaces is allowed")
    return token


class Gatekeeper:
    """Decides about upgrade requests from their Authorization and Origin headers."""

    def __init__(self, secret: str, allowed_origins: Collection[str] = ()) -> None:
        self._full = check_token(secret).encode()
        self._forward = station_key(secret).encode()
        self._allowed_origins = frozenset(allowed_origins)

    def admit(self, authorization: Sequence[str], origin: Sequence[str]) -> Permission | Refusal:
        """The permission of a request with these header values, or the HTTP refusal. 403 goes before 401."""
        if origin and not (len(origin) == 1 and origin[0] in self._allowed_origins):
            return Refusal(403, f"Origin {origin[0][:200]!r} is not allowed here")
        if len(authorization) != 1:
            return Refusal(401, "one Authorization header with a bearer token is needed")
        scheme, _, presented = authorization[0].partition(" ")
        token = presented.strip().encode(errors="surrogateescape")
        # Both comparisons are made always, so time tells nothing about which of them came close.
        is_full = hmac.compare_digest(token, self._full)
        is_forward = hmac.compare_digest(token, self._forward)
        if scheme.lower() == "bearer":
            if is_full:
                return "full"
            if is_forward:
                return "forward"
        return Refusal(401, "the bearer token is not this fleet's")
