"""The message around a cache record: a blake3 of the record, then the record.

The record's own checks refuse what is malformed; the hash refuses what is well-formed, but not what was sent.
"""

from __future__ import annotations

from blake3 import blake3

from .errors import RecordError

HASH_BYTES = 32


def pack_shipment(record: bytes) -> bytes:
    """The record with its hash in front."""
    return blake3(record).digest() + record


def unpack_shipment(message: bytes | bytearray | memoryview) -> memoryview:
    """The record of a message, a view. Raises RecordError where it is not what was sent."""
    data = memoryview(message).cast("B")
    found, record = data[:HASH_BYTES], data[HASH_BYTES:]
    if len(found) < HASH_BYTES:
        raise RecordError(f"a cache message of {len(data)} bytes: {HASH_BYTES} of hash come first")
    if blake3(record).digest() != found:
        raise RecordError(f"a cache record of {len(record)} bytes whose blake3 is not the one it was sent with")
    return record
