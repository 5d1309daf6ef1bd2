"""Writing one weight file: safetensors whose tensors start at multiples of 64 bytes, streamed.

The header takes a fixed page at the front, padded with spaces as the format allows, and is written last, when the
sizes are known; gaps between tensors are named `pad.N`, since the format allows no holes. Any safetensors reader can
open the file: packed matrices appear as U8, norms as F32.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from .digest import file_blake3
from .manifest import TENSOR_ALIGNMENT, VECTOR, FileEntry, TensorEntry, file_name

HEADER_BYTES = 4096  # one page: room for the handful of tensors of a file; data starts page-aligned

U8 = npt.NDArray[np.uint8]


class WeightFileWriter:
    """Writes the file of one role and layer into `folder`; `finish` returns its manifest entry."""

    def __init__(self, folder: Path, role: str, layer: int) -> None:
        self._role, self._layer = role, layer
        self._path = folder / file_name(role, layer)
        self._file: IO[bytes] = open(self._path, "wb")  # noqa: SIM115 - closed by finish and abort
        self._file.write(bytes(HEADER_BYTES))
        self._end = HEADER_BYTES
        self._tensors: list[TensorEntry] = []
        self._header: dict[str, object] = {}

    def vector(self, name: str, values: npt.NDArray[np.float32]) -> None:
        """Add a norm, f32 [n]."""
        data = np.ascontiguousarray(values, "<f4")
        self._add(name, VECTOR, 1, data.size, "F32", (data.view(np.uint8),))

    def matrix(self, name: str, kind: str, rows: int, cols: int, pieces: Iterable[U8]) -> None:
        """Add a packed matrix of `rows` × `cols`, its bytes in pieces, in order."""
        self._add(name, kind, rows, cols, "U8", pieces)

    def finish(self) -> FileEntry:
        """Write the header, close, and return the entry with the file's digest."""
        header = json.dumps(self._header, separators=(",", ":")).encode()
        room = HEADER_BYTES - 8
        if len(header) > room:
            raise ValueError(f"{self._path.name}: header of {len(header)} bytes, {room} are reserved")
        self._file.seek(0)
        self._file.write(struct.pack("<Q", room) + header.ljust(room))
        self._file.close()
        digest = file_blake3(self._path)
        return FileEntry(self._path.name, self._role, self._layer, self._end, digest, tuple(self._tensors))

    def abort(self) -> None:
        """Close without a header; the caller removes the folder."""
        self._file.close()

    def _add(self, name: str, kind: str, rows: int, cols: int, dtype: str, pieces: Iterable[U8]) -> None:
        self._pad()
        start, digest = self._end, blake3()
        for piece in pieces:
            data = np.ascontiguousarray(piece).reshape(-1).data
            self._file.write(data)
            digest.update(data)
            self._end += data.nbytes
        size = self._end - start
        self._declare(name, dtype, [size] if dtype == "U8" else [size // 4], start)
        self._tensors.append(TensorEntry(name, kind, rows, cols, start, size, digest.hexdigest()))

    def _pad(self) -> None:
        gap = -self._end % TENSOR_ALIGNMENT
        if gap:
            start = self._end
            self._file.write(bytes(gap))
            self._end += gap
            self._declare(f"pad.{len(self._tensors)}", "U8", [gap], start)

    def _declare(self, name: str, dtype: str, shape: list[int], start: int) -> None:
        offsets = [start - HEADER_BYTES, self._end - HEADER_BYTES]
        self._header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
