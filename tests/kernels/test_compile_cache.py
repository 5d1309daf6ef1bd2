"""The compile cache: compiled once whoever asks, never stale, and clear words where it cannot be filled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stations.errors import KernelError
from stations.kernels.fast.cache import CompileCache, divide, variant
from stations.kernels.fast.loader import LoadedUnits
from stations.kernels.fast.target import Target, current_target
from stations.kernels.fast.units import ALL_UNITS, SOURCES, object_name, units_of

UNITS = ("lookup.f32", "lookup.q4_1")

_WARM = """
import os, sys, json
from pathlib import Path
from stations.kernels.fast.cache import CompileCache
from stations.kernels.fast.target import current_target
calls = []
cache = CompileCache(Path(sys.argv[1]), current_target(os.environ), os.environ)
cache.ensure(sys.argv[2:], lambda done, total: calls.append([done, total]))
print(json.dumps(calls))
"""


def _warm(folder: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WARM, str(folder), *UNITS]
    env = os.environ | (environment or {})
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _cache(folder: Path) -> CompileCache:
    return CompileCache(folder, current_target(os.environ), os.environ)


def test_processes_that_warm_an_empty_cache_at_once_compile_once(tmp_path: Path) -> None:
    outputs = [child.communicate(timeout=300) for child in [_warm(tmp_path) for _ in range(3)]]
    calls = [json.loads(out) for out, _ in outputs]
    assert all(progress[-1] == [2, 2] for progress in calls)
    assert sorted(len(progress) for progress in calls) == [1, 1, 3]  # one saw 0, 1, 2; the others found all done
    assert not _cache(tmp_path).missing(UNITS)
    assert sorted(p.suffix for p in _cache(tmp_path).folder.iterdir()) == ["", ".o", ".o"]  # and the lock
    units = LoadedUnits(_cache(tmp_path), UNITS)
    assert units.address("lookup.f32") != units.address("lookup.q4_1")


def _with_numba(folder: Path, source: str) -> CompileCache:
    """A cache whose compilers find another numba."""
    numba = folder / "shadow" / "numba"
    numba.mkdir(parents=True)
    (numba / "__init__.py").write_text(source)
    environment = dict(os.environ) | {"PYTHONPATH": str(numba.parent)}
    return CompileCache(folder / "cache", current_target(os.environ), environment)


def test_what_a_build_left_that_was_ended_half_way_is_not_used(tmp_path: Path) -> None:
    tell = "import os; raise ImportError(f'left {os.path.exists(os.environ[\"NUMBA_CACHE_DIR\"])}')"
    cache = _with_numba(tmp_path, tell)
    (cache.folder / "numba").mkdir(parents=True)
    (cache.folder / "numba" / "attend_rows.nbi").write_text("of sources that have changed since")
    with pytest.raises(KernelError, match="ImportError: left False"):
        cache.ensure(["lookup.f32"])


def test_a_compiler_that_fails_is_reported_in_one_line_with_its_last_words(tmp_path: Path) -> None:
    cache = _with_numba(tmp_path, "raise ImportError('no numba on this machine')")
    with pytest.raises(KernelError, match=r"lookup.f32 could not be compiled \(ImportError: no numba on this machine"):
        cache.ensure(["lookup.f32"])


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "jit").write_text("a file where the folder should be")
    with pytest.raises(KernelError, match=f"compiled kernels cannot be written to {tmp_path}"):
        _cache(tmp_path).ensure(["lookup.f32"])


def test_a_damaged_object_file_is_named(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    cache.folder.mkdir(parents=True)
    cache.path("lookup.f32").write_bytes(b"not an object file")
    with pytest.raises(KernelError, match=r"lookup\.f32-.*\.o cannot be loaded"):
        LoadedUnits(cache, ["lookup.f32"])


def test_another_cpu_has_another_folder_and_other_sources_another_file() -> None:
    one = Target("x86_64", "znver4", "+avx512f,+fma")
    assert variant(one) != variant(Target("x86_64", "znver4", "+fma"))
    assert variant(one) == variant(Target("x86_64", "znver4", "+avx512f,+fma"))
    assert object_name("product.f32").startswith("product.f32-")
    assert object_name("product.f32")[-18:] == object_name("product.q4_1")[-18:] != object_name("lookup.f32")[-18:]


def test_every_compiled_source_belongs_to_a_unit() -> None:
    package = Path(sys.modules["stations.kernels.fast.units"].__file__ or "").parent
    known = {path.name for patterns in SOURCES.values() for p in patterns if "/" not in p for path in package.glob(p)}
    sources = {
        path.name for path in package.glob("*.py") if "numba" in path.read_text() or "@kernel" in path.read_text()
    }
    not_compiled = {"cache.py", "loader.py", "backend.py", "elf.py"}  # they mention numba only
    assert sources - not_compiled <= known


def test_work_is_shared_out_evenly_and_completely() -> None:
    shares = divide(ALL_UNITS, 2)
    assert sorted(name for share in shares for name in share) == sorted(ALL_UNITS)
    assert divide(units_of(["q4_1", "q8_0"], ["q8_0"]), 2)[0] == ["attend", "layers"]
