"""The rules of hello: what must agree, which limits hold, what the answer to a mismatch says. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .errors import RemoteProtocolError, VersionMismatchError
from .messages import PROTOCOL_VERSION, ConnectionMessage, Hello, Limits, decode_connection

HelloCheck = Callable[[Hello, Hello], None]

MAX_CONNECTION_MESSAGE_BYTES = 64 * 1024  # hello, heartbeat, goodbye: read before limits are known
# A hello is one frame. Who begins a longer message instead is refused at its first frame, not when it fails to end.
MAX_PARTIAL_BEFORE_HELLO = 0


def check_hello(local: Hello, remote: Hello) -> None:
    """VersionMismatchError, naming both values, unless protocol versions and model fingerprints agree.

    An empty fingerprint agrees with any. Differing numerics ids are allowed: the route is then `cut: bounded`.
    """
    if local.protocol != remote.protocol:
        raise VersionMismatchError(
            f"protocol version: {_who(local)} speaks {local.protocol} ({local.software or 'unknown'}), "
            f"{_who(remote)} speaks {remote.protocol} ({remote.software or 'unknown'})"
        )
    _check_equal("model fingerprint", local, local.fingerprint, remote, remote.fingerprint)


def check_exact(local: Hello, remote: Hello) -> None:
    """`check_hello`, and the numerics ids must agree too (empty agrees with any)."""
    check_hello(local, remote)
    _check_equal("numerics id", local, local.numerics, remote, remote.numerics)


def negotiate(local: Limits, remote: Limits) -> Limits:
    """Of two limits the smaller rules; 0 rows mean no limit."""
    return Limits(
        max_message_bytes=min(local.max_message_bytes, remote.max_message_bytes),
        max_calls=min(local.max_calls, remote.max_calls),
        max_sessions=min(local.max_sessions, remote.max_sessions),
        max_rows=min(local.max_rows or remote.max_rows, remote.max_rows or local.max_rows),
    )


def read_connection_message(payload: bytes | bytearray | memoryview) -> ConnectionMessage:
    """A message of stream 0000; RemoteProtocolError when it is none."""
    if len(payload) > MAX_CONNECTION_MESSAGE_BYTES:
        raise RemoteProtocolError(
            f"connection message of {len(payload):,} bytes: at most {MAX_CONNECTION_MESSAGE_BYTES:,}"
        )
    try:
        return decode_connection(payload)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(
            f"stream 0000 carries no message of protocol version {PROTOCOL_VERSION}: {error}"
        ) from None


def check_limits(limits: Limits) -> None:
    """RemoteProtocolError when a peer's limits leave no room to speak at all."""
    if limits.max_message_bytes < 1 or limits.max_calls < 1 or limits.max_sessions < 0 or limits.max_rows < 0:
        raise RemoteProtocolError(
            f"limits of {limits.max_message_bytes} message bytes, {limits.max_calls} calls, "
            f"{limits.max_sessions} sessions, {limits.max_rows} rows: at least 1, 1, 0 and 0"
        )


def _check_equal(what: str, local: Hello, ours: str, remote: Hello, theirs: str) -> None:
    if ours and theirs and ours != theirs:
        raise VersionMismatchError(f"{what}: {_who(local)} has {ours}, {_who(remote)} has {theirs}")


def _who(hello: Hello) -> str:
    return f"{hello.kind} {hello.name!r}"
