"""The frame codec: a 10-byte big-endian header and a payload (`docs/protocol.md`, *Frames*).

Header: stream_id u16 · sequence u32 · flags u8 · payload length u24. No magic, no checksum. The codec knows no stream
ids and no message rules: any stream id passes, only the two reserved flag bits and impossible lengths are refused.
`decode_frames` reads a whole WebSocket message; `FrameDecoder` reads a byte stream cut anywhere.
"""

from __future__ import annotations

import struct
import sys
from enum import IntFlag

import msgspec

from .errors import FrameTooLargeError, LocalProtocolError, OversizeError, RemoteProtocolError

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">HIBBH")  # the u24 length as its high byte and its low two
HEADER_BYTES = HEADER.size
SEQUENCE, SEQUENCE_AT = struct.Struct(">I"), 2
MAX_PAYLOAD_BYTES = 0xFF_FFFF  # what a u24 holds
RESERVED_FLAGS = 0xC0

# Of one WebSocket message. Without it 16 MiB of empty frames are 1.7 million objects: 600 MiB, and 5 s to make them.
MAX_FRAMES = 4096

assert HEADER_BYTES == 10


class Flags(IntFlag):
    """The flag byte. Version 1 acts on VENT, FIN and POISON; FORK, RACE and FOLD are carried and shown in traces."""

    FORK = 0x01
    RACE = 0x02
    FOLD = 0x04
    VENT = 0x08
    FIN = 0x10
    POISON = 0x20


MAX_FLAGS = 0x3F

# Operators of an IntFlag build a new member each time (0.7 µs); on the path of every message flags index these instead.
FLAGS = tuple(Flags(value) for value in range(MAX_FLAGS + 1))
ENDS_MESSAGE = tuple(bool(value & (Flags.FIN.value | Flags.VENT.value)) for value in range(MAX_FLAGS + 1))
IS_VENT = tuple(bool(value & Flags.VENT.value) for value in range(MAX_FLAGS + 1))


class Frame(msgspec.Struct, frozen=True):
    """One frame. `payload` is bytes or a view of the message it came in; a view equals bytes of the same content."""

    stream_id: int
    sequence: int
    flags: Flags = Flags(0)
    payload: Buffer = b""

    def pack(self) -> bytes:
        """Header and payload. FrameTooLargeError beyond 16,777,215 bytes, LocalProtocolError for a bad field."""
        payload = self.payload
        return pack_header(self.stream_id, self.sequence, self.flags, memoryview(payload).nbytes) + payload


def pack_header(stream_id: int, sequence: int, flags: int, payload_bytes: int) -> bytes:
    """The 10 bytes before a payload of `payload_bytes`; every field is checked."""
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise FrameTooLargeError(f"payload of {payload_bytes:,} bytes: a frame holds at most {MAX_PAYLOAD_BYTES:,}")
    if not 0 <= flags <= MAX_FLAGS:
        raise LocalProtocolError(f"flags {flags:#x}: bits 0x40 and 0x80 are reserved, a flag byte has no others")
    try:
        return HEADER.pack(stream_id, sequence, flags, payload_bytes >> 16, payload_bytes & 0xFFFF)
    except struct.error:
        raise LocalProtocolError(
            f"stream {stream_id} sequence {sequence}: allowed are 0 to {0xFFFF:,} and 0 to {0xFFFFFFFF:,}"
        ) from None


def is_single_frame(packed: Buffer) -> bool:
    """True when `packed` is exactly one well-formed frame."""
    size = memoryview(packed).nbytes
    if size < HEADER_BYTES:
        return False
    _, _, flags, high, low = HEADER.unpack_from(packed)
    return not flags & RESERVED_FLAGS and HEADER_BYTES + (high << 16 | low) == size


def decode_frames(message: Buffer, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> list[Frame]:
    """All frames of one WebSocket message, payloads as views of it; all are checked before any is returned.

    RemoteProtocolError for reserved flags, for more than MAX_FRAMES and for a message that does not end where a frame
    ends, OversizeError for a payload beyond `max_payload_bytes`.
    """
    view = memoryview(message)
    frames, consumed = _decode(view, max_payload_bytes, MAX_FRAMES)
    if consumed != len(view):
        raise RemoteProtocolError(
            f"message of {len(view):,} bytes ends inside frame {len(frames) + 1}: {_missing(view[consumed:])}"
        )
    if not frames:
        raise RemoteProtocolError("empty message: at least one frame is expected")
    return frames


class FrameDecoder:
    """Incremental decoder of a byte stream. After an error it stays broken: every further feed raises it again."""

    def __init__(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._rest = bytearray()
        self._needed = HEADER_BYTES  # bytes in _rest at which the next step of decoding is possible
        self._error: RemoteProtocolError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes held back because their frame is not complete; at most one header and one payload."""
        return len(self._rest)

    def feed(self, data: Buffer) -> list[Frame]:
        """The frames that `data` completes, in order; none is returned from a `data` that holds a bad one.

        Raises RemoteProtocolError for reserved flags, OversizeError for a length beyond the limit, at the header and
        before the payload is waited for.
        """
        if self._error is not None:
            raise self._error
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return []
            view = memoryview(bytes(self._rest))  # views handed out must not pin a buffer that still grows
        else:
            view = memoryview(data)
        try:
            frames, consumed = _decode(view, self._max_payload_bytes)
        except RemoteProtocolError as error:
            self._error = error
            self._rest.clear()
            raise
        rest = view[consumed:]
        self._rest = bytearray(rest)
        self._needed = HEADER_BYTES if len(rest) < HEADER_BYTES else HEADER_BYTES + _payload_bytes(rest)
        return frames


def _decode(view: memoryview, max_payload_bytes: int, max_frames: int = sys.maxsize) -> tuple[list[Frame], int]:
    """Complete frames of `view` and the bytes they took. Bad headers raise, whether or not their payload is there."""
    frames: list[Frame] = []
    at, size = 0, len(view)
    while size - at >= HEADER_BYTES:
        stream_id, sequence, flags, high, low = HEADER.unpack_from(view, at)
        if flags & RESERVED_FLAGS:
            raise RemoteProtocolError(
                f"frame {len(frames) + 1} (stream {stream_id:04x}) has flags {flags:#04x}: 0x40 and 0x80 are reserved"
            )
        length = high << 16 | low
        if length > max_payload_bytes:
            raise OversizeError(
                f"frame {len(frames) + 1} (stream {stream_id:04x}) announces {length:,} bytes, "
                f"allowed are {max_payload_bytes:,}"
            )
        end = at + HEADER_BYTES + length
        if end > size:
            break
        if len(frames) == max_frames:
            raise RemoteProtocolError(f"message of {size:,} bytes holds more than {max_frames:,} frames")
        frames.append(Frame(stream_id, sequence, FLAGS[flags], view[at + HEADER_BYTES : end]))
        at = end
    return frames, at


def _payload_bytes(header: memoryview) -> int:
    return header[7] << 16 | header[8] << 8 | header[9]


def _missing(rest: memoryview) -> str:
    if len(rest) < HEADER_BYTES:
        return f"{len(rest)} of {HEADER_BYTES} header bytes"
    return f"{len(rest) - HEADER_BYTES:,} of {_payload_bytes(rest):,} payload bytes"
