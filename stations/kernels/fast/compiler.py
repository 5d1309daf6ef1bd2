"""Compiles units to object files: numba translates, LLVM optimises each unit once, as a whole.

Run as a child, `python -m stations.kernels.fast.compiler FOLDER UNIT…`, so that a station never holds numba in memory;
prints the name of each finished unit. numba's own optimiser is off: it would run for every function anew, and take
three times as long for the same code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import llvmlite.binding as llvm

from .target import Target, current_target
from .units import STRAIGHT_FAMILIES, Unit, build, object_name, unit

_OPTIMISATION = 3


def compile_unit(wanted: Unit, target: Target) -> bytes:
    """The object file of a unit, exporting `wanted.symbol` as i32 (i64, …): 0, or numba's error status."""
    from numba import types

    function = build(wanted.name)
    signature = types.void(*[types.int64] * wanted.num_arguments)
    function.compile(signature)
    inner = function.overloads[signature.args].fndesc.llvm_func_name
    text = function.inspect_llvm(signature.args) + _entry(wanted, inner)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    for defined in module.functions:
        if not defined.is_declaration and defined.name != wanted.symbol:
            defined.linkage = "internal"
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features, opt=_OPTIMISATION, reloc="pic", codemodel="small"
    )
    _optimise(module, machine, is_straight=wanted.name.startswith(STRAIGHT_FAMILIES))
    return bytes(machine.emit_object(module))


def _optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine, *, is_straight: bool) -> None:
    """LLVM's standard passes, or for long straight code of vector operations the four that it needs.

    On such code instruction combining takes 2 s a unit (it looks through chains of fma again and again) and finds
    nothing: the same speed to the last percent, measured for 4 and 6 bits and 1 to 12 rows.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION)
    options.loop_vectorization = False  # what is to be vectors is written as vectors
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    if is_straight:
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_new_gvn_pass()
        passes.add_aggressive_dce_pass()
    else:
        passes = builder.getModulePassManager()
    passes.run(module, builder)


def _entry(wanted: Unit, inner: str) -> str:
    """LLVM text of the exported function: numba's calling convention wants places for a result and an exception."""
    arguments = ", ".join(f"i64 %a{i}" for i in range(wanted.num_arguments))
    return f"""
define i32 @{wanted.symbol}({arguments}) {{
  %result = alloca ptr
  %exception = alloca ptr
  %status = call i32 @"{inner}"(ptr %result, ptr %exception, {arguments})
  ret i32 %status
}}
"""


def write_object(folder: Path, name: str, data: bytes) -> None:
    """Place an object file at once: readers see all of it or nothing."""
    scratch = folder / f".{name}.{os.getpid()}"
    scratch.write_bytes(data)
    scratch.rename(folder / object_name(name))


def main(arguments: Sequence[str]) -> None:
    """FOLDER UNIT…: compile the units for the CPU that the environment names, into FOLDER."""
    folder = Path(arguments[0])
    target = current_target(os.environ)
    for name in arguments[1:]:
        write_object(folder, name, compile_unit(unit(name), target))
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
