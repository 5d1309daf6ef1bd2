"""The errors of the wire: one root, ours or theirs, each class with its code on the wire.

A message states the numbers: what was found, what is allowed, which station. `docs/protocol.md`, *Error codes*,
lists every code, who sends it and what the receiver does.
"""

from __future__ import annotations

from typing import ClassVar


class AeonflowError(Exception):
    """Root of everything this package raises on purpose. `code` is the error code on the wire."""

    code: ClassVar[str] = "internal"


class ProtocolError(AeonflowError):
    """The rules of the wire were broken; the connection closes."""

    code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """We tried to send what the protocol forbids. A bug or a limit on our side; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol forbids."""


class FrameTooLargeError(LocalProtocolError):
    """A payload beyond 16,777,215 bytes, or a message beyond the negotiated limit."""

    code = "too_large"


class OversizeError(RemoteProtocolError):
    """The peer sent, or announced, more bytes than the negotiated limit."""

    code = "too_large"


class VersionMismatchError(ProtocolError):
    """Hello carried another protocol version, model fingerprint or numerics id; both values are named."""

    code = "mismatch"


class AuthenticationError(AeonflowError):
    """No token, a wrong one, or a foreign Origin (HTTP 401 or 403 before any frame)."""

    code = "unauthorized"


class LinkClosedError(AeonflowError):
    """The connection is gone: EOF, close frame, silence, or never made."""

    code = "link_closed"


class DeadlineError(AeonflowError):
    """A wait reached its deadline."""

    code = "deadline"


class CallError(AeonflowError):
    """A call was refused or failed (VENT); the connection lives. Subclasses name the common causes."""

    code = "call_failed"


class CancelledCallError(CallError):
    """The caller gave the call up; the callee stops work on it."""

    code = "cancelled"


class UnknownStreamError(CallError):
    code = "unknown_stream"


class BadMessageError(CallError):
    """A control message that does not decode, or is not one this stream takes."""

    code = "bad_message"


class UnknownSessionError(CallError):
    code = "unknown_session"


class BadTensorError(CallError):
    """dtype, shape, size, layer or port that the receiver cannot take."""

    code = "bad_tensor"


class GapError(CallError):
    """Rows arrived beyond the cache's length: "gap: have 41, got 43"."""

    code = "gap"


class RollbackError(CallError):
    """Rows below a change of a cache's form were to be cut: they are gone there, the host computes them anew."""

    code = "kv_rollback"


class NotForYouError(CallError):
    """The connection is not allowed this call (a station's key permits forwarding only)."""

    code = "forbidden"


class OverloadedError(CallError):
    """A queue, a session table or a memory budget is full; the numbers are in the message."""

    code = "overloaded"


class PoisonedError(CallError):
    """NaN or infinity in a row, or two different contributions under one key."""

    code = "poisoned"


class SeedError(PoisonedError):
    """A residual seed that rows are computed from is not what was sent, or has not come; without seeds they can be."""

    code = "bad_seed"


class UnsupportedError(CallError):
    """An option, model or combination that this version does not do, with what it does."""

    code = "unsupported"


class StationLostError(AeonflowError):
    """A station died or a successor cannot be reached; names it, its exit status and last log lines."""

    code = "station_lost"


class PlanError(AeonflowError):
    """A plan that cannot run: missing or doubled roles, ranges outside the model, unknown preset."""

    code = "bad_plan"


def _walk(cls: type[AeonflowError]) -> list[type[AeonflowError]]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _walk(sub))]


_BY_CODE: dict[str, type[AeonflowError]] = {}
for _cls in _walk(AeonflowError):
    _BY_CODE.setdefault(_cls.code, _cls)


def from_code(code: str, message: str) -> AeonflowError:
    """The exception for a code that arrived on the wire; unknown codes (schemas grow) become CallError."""
    return _BY_CODE.get(code, CallError)(message)
