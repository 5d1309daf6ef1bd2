"""Places an x86-64 ELF object file in memory: what a linker and `dlopen` do for the few relocations that units have.

So a process that finds its units compiled loads no LLVM (45 MB of memory, a tenth of a second). Pure: bytes in, bytes
out; the mapping is `loader.py`'s. Sections that code could write to are refused, so the whole image may be read-only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from ...errors import KernelError

_RELOCATABLE, _X86_64 = 1, 62
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_WRITE, _ALLOC = 1, 2  # section flags
_SYMBOLS, _RELOCATIONS, _NO_BITS, _UNWIND = 2, 4, 8, 0x70000001  # section types; unwinding: nothing here throws
_WRITTEN_ONCE = ".data.rel.ro"  # by its relocations
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2  # section numbers of symbols
_R_64, _R_PC32, _R_PLT32, _R_PC64 = 1, 2, 4, 24
_R_SLOTS = (9, 41, 42)  # the address of a slot that holds the symbol's address
_JUMP = bytes((0xFF, 0x25, 2, 0, 0, 0, 0x66, 0x90))  # jmp through the 8 bytes behind it
_SLOT_BYTES = len(_JUMP) + 8


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


class ObjectFile:
    """One object file. `size`: bytes of its image. Raises KernelError for files that are none, or ask for more."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        try:
            self._sections = self._read_sections()
            self._symbols = self._read_symbols()
            self._starts, self.size = self._layout()
        except (struct.error, IndexError, ValueError) as error:
            raise KernelError(f"not an x86-64 ELF object file: {error}") from error

    def place(self, address: int, resolve: Callable[[str], int]) -> bytes:
        """The image for a mapping at `address`; `resolve` gives the addresses of the C library's functions."""
        image = bytearray(self.size)
        for section, start in self._starts.items():
            header = self._sections[section]
            if header.type != _NO_BITS:
                image[start : start + header.size] = self._data[header.offset : header.offset + header.size]
        for index, slot in self._slots.items():
            symbol = self._symbols[index]
            value = resolve(symbol.name) if symbol.section == _UNDEFINED else self._address(index, address)
            image[slot : slot + _SLOT_BYTES] = _JUMP + struct.pack("<Q", value)
        for section, relocations in self._relocations():
            for offset, symbol_index, kind, addend in relocations:
                self._relocate(image, address, self._starts[section] + offset, symbol_index, kind, addend)
        return bytes(image)

    def offset_of(self, name: str) -> int:
        """Where in the image a symbol is."""
        for index, symbol in enumerate(self._symbols):
            if symbol.name == name and symbol.section != _UNDEFINED:
                return self._address(index, 0)
        raise KernelError(f"the object file defines no {name}")

    def _read_sections(self) -> list[_Section]:
        ident, kind, machine, *_, offset, _, _, _, _, size, count, names = _HEADER.unpack_from(self._data)
        if ident[:6] != b"\x7fELF\x02\x01" or (kind, machine) != (_RELOCATABLE, _X86_64):
            raise ValueError("its header says otherwise")
        sections = [_Section(*_SECTION.unpack_from(self._data, offset + size * i)) for i in range(count)]
        self._names = sections[names].offset
        return sections

    def _read_symbols(self) -> list[_Symbol]:
        table = next(section for section in self._sections if section.type == _SYMBOLS)
        names = self._sections[table.link].offset
        found = []
        for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
            name, _, _, section, value, size = _SYMBOL.unpack_from(self._data, at)
            found.append(_Symbol(self._text(names + name), section, value, size))
        return found

    def _text(self, at: int) -> str:
        return self._data[at : self._data.index(b"\0", at)].decode()

    def _layout(self) -> tuple[dict[int, int], int]:
        """Where each section begins; then the slots and the common symbols (`_slots`, `_commons`: by symbol)."""
        starts: dict[int, int] = {}
        end = 0
        for number, section in enumerate(self._sections):
            if not section.flags & _ALLOC or not section.size or section.type == _UNWIND:
                continue
            name = self._text(self._names + section.name)
            if section.flags & _WRITE and not name.startswith(_WRITTEN_ONCE):
                raise ValueError(f"section {name} can be written to")
            starts[number] = end = -(-end // max(section.align, 1)) * max(section.align, 1)
            end += section.size
        self._starts = starts
        end = -(-end // _SLOT_BYTES) * _SLOT_BYTES
        self._slots: dict[int, int] = {}
        for _, relocations in self._relocations():
            for _, index, kind, _ in relocations:
                if (kind in _R_SLOTS or self._symbols[index].section == _UNDEFINED) and index not in self._slots:
                    self._slots[index] = end
                    end += _SLOT_BYTES
        self._commons: dict[int, int] = {}
        for index, symbol in enumerate(self._symbols):
            if symbol.section == _COMMON:  # numba's environments, which only error paths would read
                self._commons[index] = end = -(-end // max(symbol.value, 1)) * max(symbol.value, 1)
                end += symbol.size
        return starts, end

    def _relocations(self) -> list[tuple[int, list[tuple[int, int, int, int]]]]:
        """(section, [(offset, symbol, type, addend)]) for the sections of the image."""
        found = []
        for header in self._sections:
            if header.type == _RELOCATIONS and header.info in self._starts:
                entries = range(header.offset, header.offset + header.size, _RELOCATION.size)
                raw = (_RELOCATION.unpack_from(self._data, at) for at in entries)
                found.append((header.info, [(at, info >> 32, info & 0xFFFFFFFF, addend) for at, info, addend in raw]))
        return found

    def _address(self, index: int, base: int) -> int:
        symbol = self._symbols[index]
        if symbol.section == _COMMON:
            return base + self._commons[index]
        if symbol.section == _ABSOLUTE or symbol.section not in self._starts:
            raise KernelError(f"the object file's symbol {symbol.name!r} is in section {symbol.section}, not in memory")
        return base + self._starts[symbol.section] + symbol.value

    def _relocate(self, image: bytearray, base: int, at: int, index: int, kind: int, addend: int) -> None:
        if kind in _R_SLOTS:
            target = base + self._slots[index] + len(_JUMP)
        elif self._symbols[index].section == _UNDEFINED:
            target = base + self._slots[index]
        else:
            target = self._address(index, base)
        if kind in (_R_PC32, _R_PLT32, *_R_SLOTS):
            struct.pack_into("<i", image, at, target + addend - base - at)
        elif kind == _R_PC64:
            struct.pack_into("<q", image, at, target + addend - base - at)
        elif kind == _R_64:
            struct.pack_into("<Q", image, at, target + addend)
        else:
            raise KernelError(f"relocation type {kind} of {self._symbols[index].name!r} is not known")
