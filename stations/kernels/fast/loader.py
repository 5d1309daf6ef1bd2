"""Loads compiled units into the process in a few milliseconds, without numba's 70 MB and LLVM's 45.

On x86-64 with ELF they are mapped here (`elf.py`); elsewhere llvmlite links them.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable, Iterable

from ...errors import KernelError
from .cache import CompileCache
from .elf import ObjectFile
from .units import unit

_PROT_READ, _PROT_EXEC = 1, 4


class LoadedUnits:
    """Addresses of units in this process, and callables for them. Keep it for as long as either is used."""

    def __init__(self, cache: CompileCache, names: Iterable[str]) -> None:
        self._addresses: dict[str, int] = {}
        self._keep: list[object] = []
        for name in names:
            symbol = unit(name).symbol
            try:
                image = cache.path(name).read_bytes()
                self._addresses[name] = self._map(image, symbol) if can_map() else self._link(image, name, symbol)
            except (OSError, RuntimeError, KernelError) as error:
                raise KernelError(f"fast kernels: {cache.path(name)} cannot be loaded: {error}") from error

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._addresses)

    def address(self, name: str) -> int:
        return self._addresses[name]

    def function(self, name: str) -> Callable[..., int]:
        """A unit as a callable on ints; it releases the GIL. Returns numba's status, 0 for success."""
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * unit(name).num_arguments)
        function = prototype(self._addresses[name])
        function.units = self  # type: ignore[attr-defined]  # the code goes when its library does
        return function

    def _map(self, data: bytes, symbol: str) -> int:
        """Map an object file, read-only once it is in place; returns the symbol's address."""
        process = ctypes.CDLL(None, use_errno=True)
        found = ObjectFile(data)
        area = mmap.mmap(-1, found.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        area.write(found.place(address, lambda name: _address_of(process, name)))
        protect = process.mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if protect(address, found.size, _PROT_READ | _PROT_EXEC):
            raise OSError(ctypes.get_errno(), "mprotect: memory cannot be made executable")
        self._keep.append(area)
        return address + found.offset_of(symbol)

    def _link(self, data: bytes, name: str, symbol: str) -> int:
        """Have llvmlite link an object file; returns the symbol's address."""
        import llvmlite.binding as llvm

        if not self._keep:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
            self._keep.append(llvm.create_lljit_compiler(machine))
        builder = llvm.JITLibraryBuilder().add_object_img(data).export_symbol(symbol).add_current_process()
        library = builder.link(self._keep[0], name)
        self._keep.append(library)
        return int(library[symbol])


def can_map() -> bool:
    """Whether object files of this machine are ELF for x86-64."""
    return sys.platform.startswith("linux") and platform.machine() == "x86_64"


def _address_of(process: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.cast(getattr(process, name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise KernelError(f"the C library has no {name}") from None
