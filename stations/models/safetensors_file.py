"""Reading tensors of a safetensors file by rows, without holding or mapping them.

The library's own reader has no bfloat16 for numpy and maps the whole file; the header is a length and a JSON object,
checked here against the file's size.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from .checkpoint import SourceTensor, row_bytes
from .errors import CorruptModelError, UnsupportedModelError
from .row_file import RowFile

MAX_HEADER_BYTES = 100 << 20  # the format's own limit
_TYPES = ("F32", "F16", "BF16")


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class SafetensorsFile:
    """An open safetensors file; `tensors` by name (vectors have one row). Close it when the import is done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = RowFile(path)
        try:
            entries, start = self._read_header()
            self.tensors = {name: self._tensor(name, entry, start) for name, entry in entries.items()}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; tensors can no longer be read."""
        self._file.close()

    def _read_header(self) -> tuple[dict[str, _Entry], int]:
        size = self._file.size
        length = int.from_bytes(self._file.pread(8, 0), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise CorruptModelError(f"{self.path}: header of {length:,} bytes in a file of {size:,}: truncated")
        try:
            header = msgspec.json.decode(self._file.pread(length, 8), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
        except msgspec.DecodeError as error:
            raise CorruptModelError(f"{self.path}: header: {error}") from error
        return entries, 8 + length

    def _tensor(self, name: str, entry: _Entry, start: int) -> SourceTensor:
        if entry.dtype not in _TYPES:
            raise UnsupportedModelError(f"{name} is {entry.dtype}; supported in safetensors are {', '.join(_TYPES)}")
        if not 1 <= len(entry.shape) <= 2 or min(entry.shape) < 1:
            raise UnsupportedModelError(f"{name} has shape {entry.shape}; llama models have 1 or 2 dimensions")
        rows, cols = (1, *entry.shape)[-2:]
        width = row_bytes(entry.dtype, cols)
        first, last = (start + offset for offset in entry.data_offsets)
        if last - first != rows * width or first < start or last > self._file.size:
            raise CorruptModelError(
                f"{self.path}: {name} takes bytes {first:,} to {last:,} for {rows * width:,}, "
                f"the file has {self._file.size:,}: truncated or damaged"
            )
        return SourceTensor(name, entry.dtype, rows, cols, self._file.rows(first, width))
