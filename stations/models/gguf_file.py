"""Reading GGUF files: metadata and where tensors lie, every size checked against the file before it is used.

Written here rather than taken from the `gguf` package's reader, which holds an array object for every element of the
vocabulary (seconds and hundreds of megabytes), and fails on damaged files in as many ways as there are fields.
Tensor bytes are read on demand, never mapped, so an import's memory does not grow with the file.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..layout import weight_format
from .checkpoint import SUPPORTED_TYPES, SourceTensor, row_bytes
from .errors import CorruptModelError, UnsupportedModelError
from .row_file import RowFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MIN_FILE_BYTES = 24  # magic, version and two counts
MAX_HEADER_BYTES = 256 << 20  # a header beyond this is damage: vocabularies take a few megabytes
MAX_DEPTH = 4  # arrays in arrays
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_TYPE_NAMES = {
    0: "F32", 1: "F16", 30: "BF16", 8: "Q8_0", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
}  # fmt: skip


class _TensorInfo(NamedTuple):
    name: str
    dims: tuple[int, ...]
    type_number: int
    offset: int


class GgufFile:
    """An open GGUF file: `metadata` by key, `tensors` by name. Close it when the import is done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = RowFile(path)
        self.size = self._file.size
        try:
            if self.size < MIN_FILE_BYTES:
                raise CorruptModelError(f"{path}: {self.size} bytes, a GGUF file has at least {MIN_FILE_BYTES}")
            with mmap.mmap(self._file.fd, 0, access=mmap.ACCESS_READ) as data:
                header = _Header(path, data)
                self.metadata = header.read_metadata()
                infos = header.read_tensor_infos()
            alignment = _positive_int(self.metadata.get("general.alignment", 32))
            start = -(-header.at // alignment) * alignment
            self.tensors = {info.name: self._tensor(info, start, alignment) for info in infos}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; tensors can no longer be read."""
        self._file.close()

    def _tensor(self, info: _TensorInfo, start: int, alignment: int) -> SourceTensor:
        kind = _TYPE_NAMES.get(info.type_number)
        if kind is None:
            raise UnsupportedModelError(
                f"{info.name} has weight type {_foreign_type(info.type_number)}; supported are {SUPPORTED_TYPES}"
            )
        if len(info.dims) > 2:
            raise UnsupportedModelError(f"{info.name} has {len(info.dims)} dimensions; llama models have 1 or 2")
        cols, rows = (*info.dims, 1)[:2]
        if cols % (block := weight_format(kind).source_block_cols):
            raise CorruptModelError(f"{self.path}: {info.name} has {cols} columns, {kind} needs n x {block}")
        width = row_bytes(kind, cols)
        first = start + info.offset
        end = first + rows * width
        if info.offset % alignment or end > self.size:
            raise CorruptModelError(
                f"{self.path}: {info.name} takes bytes {first:,} to {end:,}, the file has {self.size:,}: truncated"
            )
        return SourceTensor(info.name, kind, rows, cols, self._file.rows(first, width))


class _Header:
    """A cursor over the bytes before the tensors; reading past them raises CorruptModelError."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self._data = path, data
        self._end = min(len(data), MAX_HEADER_BYTES)
        if data[:4] != MAGIC:
            raise UnsupportedModelError(f"{path} is not a GGUF file: it begins with {data[:4]!r}, not {MAGIC!r}")
        self.at = 4
        version = self._scalar("<I")
        if version not in VERSIONS:
            big_endian = struct.unpack(">I", data[4:8])[0] in VERSIONS
            found = "big-endian" if big_endian else f"version {version}"
            raise UnsupportedModelError(f"{path} is {found} GGUF; supported are little-endian versions {VERSIONS}")
        self._num_tensors, self._num_keys = self._scalar("<Q"), self._scalar("<Q")

    def read_metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(self._count(self._num_keys, 13)):
            key = self._string()
            metadata[key] = self._value(self._scalar("<I"))
        return metadata

    def read_tensor_infos(self) -> list[_TensorInfo]:
        infos = []
        for _ in range(self._count(self._num_tensors, 32)):
            name = self._string()
            dims = tuple(self._scalar("<Q") for _ in range(self._count(self._scalar("<I"), 8)))
            info = _TensorInfo(name, dims, self._scalar("<I"), self._scalar("<Q"))
            if not dims or min(dims) < 1 or max(dims) > len(self._data) * 8:
                raise CorruptModelError(f"{self.path}: tensor {name!r} has dimensions {dims}")
            infos.append(info)
        if len({i.name for i in infos}) != len(infos):
            raise CorruptModelError(f"{self.path}: a tensor's name appears twice among {len(infos)}")
        return infos

    def _take(self, count: int) -> int:
        """Advance by `count` bytes, returning where they begin."""
        start, self.at = self.at, self.at + count
        if self.at > self._end:
            raise CorruptModelError(
                f"{self.path}: {count:,} bytes at {start:,} reach past the {self._end:,} there are: truncated"
            )
        return start

    def _count(self, count: int, least_bytes: int) -> int:
        """A number of items, each of `least_bytes` or more, refused when they cannot fit."""
        if count * least_bytes > self._end - self.at:
            raise CorruptModelError(
                f"{self.path}: {count:,} items of {least_bytes} bytes or more at {self.at:,}, "
                f"{self._end - self.at:,} bytes follow: truncated or damaged"
            )
        return count

    def _scalar(self, code: str) -> Any:
        return struct.unpack_from(code, self._data, self._take(struct.calcsize(code)))[0]

    def _string(self) -> str:
        size = self._count(self._scalar("<Q"), 1)
        start = self._take(size)
        try:
            return self._data[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise CorruptModelError(f"{self.path}: string at byte {start:,} is not UTF-8: {error}") from error

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY and depth < MAX_DEPTH:
            item, count = self._scalar("<I"), self._scalar("<Q")
            if item not in _SCALARS:
                return [self._value(item, depth + 1) for _ in range(self._count(count, 8))]
            code = _SCALARS[item]
            start = self._take(self._count(count, struct.calcsize(code)) * struct.calcsize(code))
            return np.frombuffer(self._data, np.dtype(code), count, start).tolist()
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        raise CorruptModelError(f"{self.path}: metadata value of unknown type {kind} at byte {self.at:,}")


def _positive_int(value: Any) -> int:
    if not isinstance(value, int) or not 1 <= value <= 1 << 20:
        raise CorruptModelError(f"general.alignment is {value!r}, a number from 1 to {1 << 20} is expected")
    return value


def _foreign_type(number: int) -> str:
    from gguf import GGMLQuantizationType  # only to name what is refused

    try:
        return str(GGMLQuantizationType(number).name)
    except ValueError:
        return f"number {number}"
