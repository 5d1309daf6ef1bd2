"""Errors as they travel: a VENT's payload to the error it names, and what a handler raised to what may be told."""

from __future__ import annotations

import logging

import msgspec

from .assembly import Message
from .errors import AeonflowError, BadMessageError, CallError, LinkClosedError, from_code
from .messages import Goodbye, decode_vent

logger = logging.getLogger("aeonflow.link")


def read_vent(message: Message) -> AeonflowError:
    """The error that a VENT message carries, the station's name in front."""
    try:
        vent = decode_vent(message.payload)
    except msgspec.MsgspecError as error:
        return CallError(f"stream {message.stream:04x}: a VENT that does not decode: {error}")
    station = f"{vent.station}: " if vent.station else ""
    return from_code(vent.code, f"{station}{vent.message}")


def error_to_tell(error: Exception, message: Message) -> AeonflowError:
    """What the sender of `message` is told about an error of its handler: never details of a bug, which is logged."""
    if isinstance(error, AeonflowError):
        return error
    if isinstance(error, msgspec.MsgspecError):
        return BadMessageError(f"message on stream {message.stream:04x} does not decode: {error}")
    logger.error("handler of stream %04x failed", message.stream, exc_info=error)
    return AeonflowError(f"internal error on stream {message.stream:04x}: {type(error).__name__}")


def closed_error(peer_url: str, error: AeonflowError | None, goodbye: Goodbye | None) -> LinkClosedError:
    """A fresh error that says why a link closed: the error it ended with, or the peer's last words."""
    if isinstance(error, LinkClosedError):
        return LinkClosedError(str(error))
    last_words = "done" if goodbye is None else goodbye.reason or goodbye.code
    return LinkClosedError(f"{peer_url}: the connection is closed: {last_words if error is None else error}")
