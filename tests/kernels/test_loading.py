"""Object files in memory without LLVM: what is placed runs as LLVM would link it, what cannot be placed is refused."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from stations.errors import KernelError
from stations.kernels.fast.elf import ObjectFile
from stations.kernels.fast.loader import LoadedUnits, can_map
from stations.kernels.fast.target import Target, current_target, known_target

elf_only = pytest.mark.skipif(not can_map(), reason="only ELF for x86-64 is placed here")

_SOURCE = """
@table = internal constant [2 x i64 (i64)*] [i64 (i64)* @twice, i64 (i64)* @absolute]
declare i64 @labs(i64)
define internal i64 @twice(i64 %x) { %y = add i64 %x, %x ret i64 %y }
define internal i64 @absolute(i64 %x) { %y = call i64 @labs(i64 %x) ret i64 %y }
define i64 @entry(i64 %which, i64 %x) {
  %at = getelementptr [2 x i64 (i64)*], [2 x i64 (i64)*]* @table, i64 0, i64 %which
  %f = load i64 (i64)*, i64 (i64)** %at
  %y = call i64 %f(i64 %x)
  ret i64 %y
}
"""


def compiled(text: str) -> bytes:
    """An object file for this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text.replace("i64 (i64)*", "ptr").replace("[2 x ptr]*", "ptr").replace("ptr*", "ptr"))
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    return bytes(machine.emit_object(module))


class _Cache:
    """A compile cache of one file, under whatever name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def path(self, name: str) -> Path:
        return self._path


@elf_only
def test_tables_of_functions_and_calls_of_the_c_library_are_placed(tmp_path, monkeypatch) -> None:
    (tmp_path / "entry.o").write_bytes(compiled(_SOURCE.replace("@entry", "@aeonflow_layers")))
    units = LoadedUnits(_Cache(tmp_path / "entry.o"), ["layers"])
    entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(units.address("layers"))
    assert [entry(0, -21), entry(1, -21)] == [-42, 21]


@elf_only
def test_placed_and_linked_units_are_the_same_function(units, compile_cache, monkeypatch) -> None:
    monkeypatch.setattr("stations.kernels.fast.loader.can_map", lambda: False)
    linked = LoadedUnits(compile_cache, ["lookup.f32"])
    data = (ctypes.c_float * 512)(*range(512))
    rows = []
    for loaded in (units, linked):
        out = (ctypes.c_float * 32)()
        assert loaded.function("lookup.f32")(ctypes.addressof(data), 1, 3, ctypes.addressof(out)) == 0
        rows.append(list(out))
    assert rows[0] == rows[1] == [float(16 * k + 3) for k in range(32)]


@elf_only
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("@x = global i64 7 define i64 @f() { %y = load i64, ptr @x ret i64 %y }", "section .data can be written to"),
        ("define i64 @g() { ret i64 1 }", "defines no f"),
        ("declare i64 @no_such_function() define i64 @f() { %y = call i64 @no_such_function() ret i64 %y }",
         "C library has no no_such_function"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused_by_name(text, reason) -> None:
    def resolve(name: str) -> int:
        raise KernelError(f"the C library has no {name}")

    def place() -> int:
        found = ObjectFile(compiled(text))
        found.place(1 << 20, resolve)
        return found.offset_of("f")

    with pytest.raises(KernelError, match=reason):
        place()


@elf_only
@pytest.mark.parametrize("size", [0, 3, 64, 200, 700])
def test_a_file_that_is_cut_off_is_refused(size) -> None:
    with pytest.raises(KernelError, match="not an x86-64 ELF object file"):
        ObjectFile(compiled(_SOURCE)[:size])


def test_the_processor_is_asked_once_and_again_for_other_settings(tmp_path, monkeypatch) -> None:
    first = known_target({}, tmp_path)
    assert first == current_target({})
    monkeypatch.setattr("stations.kernels.fast.target.current_target", lambda environment: Target("x", "other", ""))
    assert known_target({}, tmp_path) == first
    assert known_target({"NUMBA_CPU_NAME": "generic"}, tmp_path).cpu == "other"
    (next(tmp_path.glob("jit/cpu-*.json"))).write_text("{}")
    assert "other" in {known_target({}, tmp_path).cpu, known_target({"NUMBA_CPU_NAME": "generic"}, tmp_path).cpu}


@elf_only
def test_warm_kernels_load_neither_numba_nor_llvm(compile_cache) -> None:
    code = """
import json, sys
from stations.kernels import make_backend
from stations.models.roles import all_roles
from tests.kernels.tiny import TinyWeights
for name in ("fast", "fast-int8"):
    make_backend(name, TinyWeights("q4_1"), all_roles(2))
print(json.dumps([name for name in ("numba", "llvmlite") if name in sys.modules]))
"""
    for _ in range(2):  # the first may have to ask LLVM for the processor
        done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == []
