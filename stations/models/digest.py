"""blake3 of a file, read in pieces: mapping it would count all of it as this process's memory."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

READ_BYTES = 4 << 20


def file_blake3(path: Path) -> str:
    """Hex digest of the file's bytes."""
    digest = blake3()
    buffer = bytearray(READ_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()
