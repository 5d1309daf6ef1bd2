"""Messages ↔ frames of one stream and sequence (`docs/protocol.md`, *Messages*).

A message of at most 16,777,215 bytes is one frame with FIN; a larger one is cut into full frames, only the last with
FIN. Reassembly is bounded before memory is reserved: by the size of one message, by what all unfinished messages of the
connection hold together, and by their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from . import bands
from .errors import FrameTooLargeError, OversizeError, RemoteProtocolError
from .frames import (
    ENDS_MESSAGE,
    FLAGS,
    HEADER,
    HEADER_BYTES,
    IS_VENT,
    MAX_FLAGS,
    MAX_PAYLOAD_BYTES,
    Buffer,
    Flags,
    Frame,
    decode_frames,
    pack_header,
)

# Without it a peer could open a message under each of 2³² sequences and never end one.
MAX_PARTIAL_MESSAGES = 64

_BUFFERS = (bytes, bytearray, memoryview)


class Message(NamedTuple):
    """An assembled message. `payload` may be kept: its buffer is not reused. `flags`: those of all its frames."""

    stream: int
    sequence: int
    flags: Flags
    payload: Buffer


def read_message(packed: Buffer) -> Message:
    """The message that is known to be one whole frame."""
    stream, sequence, flags, _, _ = HEADER.unpack_from(packed)
    return Message(stream, sequence, FLAGS[flags], memoryview(packed)[HEADER_BYTES:])


def packed_frames(message: Buffer, wholes: Sequence[Message]) -> list[bytes]:
    """The frames of a WebSocket message that made `wholes`, where each of these is a frame of its own; else none."""
    frames: list[bytes] = []
    at = 0
    for whole in wholes:
        end = at + HEADER_BYTES + len(whole.payload)
        frames.append(bytes(message[at:end]))
        at = end
    return frames if at == len(message) else []


def cut_message(
    stream: int,
    sequence: int,
    pieces: Buffer | Sequence[Buffer],
    flags: Flags = Flags.FIN,
    max_message_bytes: int = MAX_PAYLOAD_BYTES,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
) -> list[bytes]:
    """The packed frames of a message whose payload is `pieces` back to back. The pieces are copied, once.

    FrameTooLargeError names the sizes when the payload is beyond `max_message_bytes`. FIN is moved to the last frame;
    other flags stand on every frame.
    """
    if isinstance(pieces, _BUFFERS):
        pieces = (pieces,)
    size = 0
    for piece in pieces:
        size += len(piece) if type(piece) is bytes else memoryview(piece).nbytes
    if size > max_message_bytes:
        raise FrameTooLargeError(
            f"message of {size:,} bytes on stream {stream:04x}: this connection takes {max_message_bytes:,}"
        )
    if size <= max_payload_bytes:
        return [b"".join((pack_header(stream, sequence, flags, size), *pieces))]
    frames: list[bytes] = []
    left = size
    for chunk in _chunks(pieces, max_payload_bytes):
        length = sum(len(part) for part in chunk)
        left -= length
        header = pack_header(stream, sequence, flags if not left else flags & ~Flags.FIN, length)
        frames.append(b"".join((header, *chunk)))
    return frames


def _chunks(pieces: Iterable[Buffer], chunk_bytes: int) -> Iterator[list[memoryview]]:
    """Lists of views, `chunk_bytes` together (the last may be shorter), in order."""
    chunk: list[memoryview] = []
    room = chunk_bytes
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(view):
            chunk.append(view[:room])
            view = view[room:]
            room -= len(chunk[-1])
            if not room:
                yield chunk
                chunk, room = [], chunk_bytes
    if chunk:
        yield chunk


class Assembler:
    """Collects frames into messages. One per connection and direction."""

    def __init__(self, max_message_bytes: int, max_partial_messages: int = MAX_PARTIAL_MESSAGES) -> None:
        self._partial: dict[tuple[int, int], tuple[bytearray, Flags]] = {}
        self.partial_bytes = 0
        self.frames = 0  # read so far
        self.set_limits(max_message_bytes, max_partial_messages)

    def set_limits(self, max_message_bytes: int, max_partial_messages: int) -> None:
        """From now on a message may have this many bytes, and so many may be unfinished; 0: each is one frame."""
        self.max_message_bytes = max_message_bytes
        self._max_partial_messages = max_partial_messages
        self._max_payload_bytes = min(MAX_PAYLOAD_BYTES, max_message_bytes)

    def read(self, message: Buffer) -> list[Message]:
        """What one whole WebSocket message completes. Every frame is checked before any of them counts.

        Raises like `decode_frames` and `receive`. The payload of a message of one frame is a view of `message`.
        """
        if len(message) >= HEADER_BYTES and not self._partial:
            # One frame that is one message, as nearly all are: the rules below, without the objects between.
            stream, sequence, flags, high, low = HEADER.unpack_from(message)
            size = high << 16 | low
            is_whole = size + HEADER_BYTES == len(message) and size <= self._max_payload_bytes
            if is_whole and flags <= MAX_FLAGS and ENDS_MESSAGE[flags]:
                self.frames += 1
                return [Message(stream, sequence, FLAGS[flags], memoryview(message)[HEADER_BYTES:])]
        frames = decode_frames(message, self._max_payload_bytes)
        self.frames += len(frames)
        return [whole for frame in frames if (whole := self.receive(frame)) is not None]

    def receive(self, frame: Frame) -> Message | None:
        """The message that `frame` completes, or None. OversizeError and RemoteProtocolError close the connection.

        VENT ends a message in error: what came before under its sequence is dropped. A seed is always one frame.
        """
        key = (frame.stream_id, frame.sequence)
        size = len(frame.payload)
        held = self._partial.get(key)
        if held is None:
            if ENDS_MESSAGE[frame.flags] or bands.is_seed(frame.stream_id):
                if size > self.max_message_bytes:
                    raise self._oversize(frame, size)
                return Message(frame.stream_id, frame.sequence, frame.flags, frame.payload)
            if len(self._partial) >= self._max_partial_messages:
                when = "" if self._max_partial_messages else " before hello"
                raise RemoteProtocolError(
                    f"{len(self._partial) + 1} unfinished messages{when}: at most {self._max_partial_messages} are held"
                )
            held = (bytearray(), Flags(0))
        if IS_VENT[frame.flags]:
            self._drop(key)
            return Message(frame.stream_id, frame.sequence, frame.flags, frame.payload)
        if self.partial_bytes + size > self.max_message_bytes:
            raise self._oversize(frame, self.partial_bytes + size)
        payload, flags = held[0], held[1] | frame.flags
        payload += frame.payload  # copied: a view would pin the whole WebSocket message it came in
        self.partial_bytes += size
        if frame.flags & Flags.FIN:
            self._drop(key)
            return Message(frame.stream_id, frame.sequence, flags, memoryview(payload))
        self._partial[key] = (payload, flags)
        return None

    def _drop(self, key: tuple[int, int]) -> None:
        payload, _ = self._partial.pop(key, (b"", Flags(0)))
        self.partial_bytes -= len(payload)

    def _oversize(self, frame: Frame, size: int) -> OversizeError:
        return OversizeError(
            f"message on stream {frame.stream_id:04x} of {size:,} bytes or more: allowed are {self.max_message_bytes:,}"
        )
