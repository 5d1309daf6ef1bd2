"""Loads compiled units into the process with llvmlite alone, in a few milliseconds and without numba's 70 MB."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import llvmlite.binding as llvm

from ...errors import KernelError
from .cache import CompileCache
from .units import unit


class LoadedUnits:
    """Addresses of units in this process, and callables for them. Keep it for as long as either is used."""

    def __init__(self, cache: CompileCache, names: Iterable[str]) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._jit = llvm.create_lljit_compiler(machine)
        self._libraries: list[Any] = []
        self._addresses: dict[str, int] = {}
        for name in names:
            symbol = unit(name).symbol
            try:
                image = cache.path(name).read_bytes()
                builder = llvm.JITLibraryBuilder().add_object_img(image).export_symbol(symbol).add_current_process()
                library = builder.link(self._jit, name)
            except (OSError, RuntimeError) as error:
                raise KernelError(f"fast kernels: {cache.path(name)} cannot be loaded: {error}") from error
            self._libraries.append(library)
            self._addresses[name] = library[symbol]

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
