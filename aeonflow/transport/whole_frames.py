"""WebSocket frames that are a whole binary message, read and written without a parser (RFC 6455, 5.2).

Nearly every message is one such frame, and nearly every read brings exactly one. All others (fragments, control
frames, several in one read or one in several) are for the library, and so is every fault: what is not exactly the
plain case is not read here.
"""

from __future__ import annotations

import os
import struct

from ..frames import Buffer

try:
    from websockets.speedups import apply_mask
except ImportError:  # a wheel without compiled parts
    from websockets.utils import apply_mask

_WHOLE_BINARY = 0x82  # FIN, opcode 2, no reserved bits
_MASKED = 0x80
_U16, _U64 = 126, 127  # in place of the length: the length follows, as so many bytes
_MAX_SHORT, _MAX_U16 = 125, 0xFFFF
_MASK_BYTES = 4
_POOL_BYTES = 4096

_SHORT = struct.Struct(">BB")
_LONG = struct.Struct(">BBH")
_LONGEST = struct.Struct(">BBQ")


def frame_bytes(payload_bytes: int, *, is_masked: bool) -> int:
    """Bytes of a frame whose length is written as shortly as can be."""
    length = 2 if payload_bytes <= _MAX_SHORT else 4 if payload_bytes <= _MAX_U16 else 10
    return length + payload_bytes + (_MASK_BYTES if is_masked else 0)


def read_whole(data: bytes, max_bytes: int, *, is_masked: bool) -> bytes | None:
    """The payload, if `data` is exactly one frame that is a whole binary message of up to `max_bytes`; else None."""
    size = len(data)
    if size < _LONG.size or data[0] != _WHOLE_BINARY:
        return None
    _, second, length = _LONG.unpack_from(data)
    if is_masked:
        second -= _MASKED  # of a frame that is not masked, no length that is known below
    start = _LONG.size
    if second <= _MAX_SHORT:
        length, start = second, _SHORT.size
    elif second != _U16:
        return None
    mask_bytes = _MASK_BYTES if is_masked else 0
    if second < 0 or length > max_bytes or start + mask_bytes + length != size:
        return None
    if is_masked:
        return apply_mask(data[start + _MASK_BYTES :], data[start : start + _MASK_BYTES])
    return data[start:]


class WholeWriter:
    """Makes frames of whole messages. Clients mask, each frame with fresh random bytes."""

    def __init__(self, *, is_masked: bool) -> None:
        self._is_masked = is_masked
        self._pool = b""
        self._at = 0

    def write(self, message: Buffer) -> bytes:
        """The frame that is the whole of `message`."""
        size = len(message)
        bit = _MASKED if self._is_masked else 0
        if size <= _MAX_SHORT:
            head = _SHORT.pack(_WHOLE_BINARY, bit | size)
        elif size <= _MAX_U16:
            head = _LONG.pack(_WHOLE_BINARY, bit | _U16, size)
        else:
            head = _LONGEST.pack(_WHOLE_BINARY, bit | _U64, size)
        if not bit:
            return b"".join((head, message))
        mask = self._next_mask()
        return b"".join((head, mask, apply_mask(message, mask)))

    def _next_mask(self) -> bytes:
        """Four bytes of the system's randomness, which is asked for many at a time."""
        if self._at == len(self._pool):
            self._pool, self._at = os.urandom(_POOL_BYTES), 0
        self._at += _MASK_BYTES
        return self._pool[self._at - _MASK_BYTES : self._at]
