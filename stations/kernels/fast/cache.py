"""The compile cache on disk: a folder for each CPU and compiler version, one object file a unit, built once for all.

File names carry the hash of the unit's sources: what changes code, CPU or compiler finds no file, never a stale one.
Whoever finds a unit missing builds it in child processes under a lock, so that ninety stations that start cold
compile once. Knows no numba.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from blake3 import blake3

from ...errors import KernelError
from ..numba_setup import numba_environment
from .target import Target, distribution_version
from .units import compile_cost_s, object_name

Progress = Callable[[int, int], None]  # units done, units in all

COMPILE_DEADLINE_S = 600.0
_NUM_CHILDREN = 2
_NUMBA_FOLDER = "numba"  # numba's own cache, of no use once the object files are there
_ROOT = Path(__file__).parents[3]  # where `stations` is importable from


def no_progress(done: int, total: int) -> None:
    """For callers that show none."""


def variant(target: Target) -> str:
    """The name of the cache folder for this CPU and these compilers."""
    versions = [f"{name} {distribution_version(name)}" for name in ("numba", "llvmlite")]
    text = "\n".join([*versions, target.machine, target.cpu, target.features])
    return blake3(text.encode()).hexdigest()[:20]


class CompileCache:
    """The folder `<cache>/jit/<variant>` of a target. `environment` is what children are started with."""

    def __init__(self, cache_folder: Path, target: Target, environment: Mapping[str, str]) -> None:
        self.folder = cache_folder / "jit" / variant(target)
        self._environment = environment

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the units that are not compiled yet."""
        return [name for name in names if not self.path(name).exists()]

    def path(self, name: str) -> Path:
        return self.folder / object_name(name)

    def ensure(self, names: Sequence[str], progress: Progress = no_progress) -> None:
        """Have all units on disk; compiles what is missing. Raises KernelError with the compiler's last words."""
        if not self.missing(names):
            progress(len(names), len(names))
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = open(self.folder / "lock", "a")  # noqa: SIM115 - closed by the block below
        except OSError as error:
            raise KernelError(f"compiled kernels cannot be written to {self.folder}: {error}") from error
        with _locked(lock):
            wanted = self.missing(names)
            done = len(names) - len(wanted)
            progress(done, len(names))
            self._compile(wanted, lambda count: progress(done + count, len(names)))

    def _compile(self, names: Sequence[str], on_done: Callable[[int], None]) -> None:
        """Compile in up to two children at once.

        They find nothing of a build before, which may have been ended half-way: numba knows a function by the file it
        stands in, not by those that it calls.
        """
        self._forget_functions()
        shares = [share for share in divide(names, _NUM_CHILDREN) if share]
        children = [_Child(self.folder, share, self._environment) for share in shares]
        finished = 0
        counting = threading.Lock()

        def count() -> None:
            nonlocal finished
            with counting:
                finished += 1
                on_done(finished)

        readers = [threading.Thread(target=child.read, args=(count,)) for child in children]
        for reader in readers:
            reader.start()
        for reader, child in zip(readers, children, strict=True):
            reader.join(COMPILE_DEADLINE_S)
            child.stop_if_late(is_late=reader.is_alive())
            reader.join()
            child.finish()
        self._forget_functions()
        if missing := self.missing(names):
            words = " / ".join(child.last_words for child in children if child.last_words)
            raise KernelError(f"fast kernels: {', '.join(missing)} could not be compiled ({words or 'no message'})")

    def _forget_functions(self) -> None:
        shutil.rmtree(self.folder / _NUMBA_FOLDER, ignore_errors=True)


def divide(names: Sequence[str], num_shares: int) -> list[list[str]]:
    """Shares of about the same time to compile: each unit goes to the share that has least so far."""
    shares: list[list[str]] = [[] for _ in range(num_shares)]
    costs = [0.0] * num_shares
    for name in sorted(names, key=compile_cost_s, reverse=True):
        least = costs.index(min(costs))
        shares[least].append(name)
        costs[least] += compile_cost_s(name)
    return shares


class _Child:
    """One compiling process."""

    def __init__(self, folder: Path, names: Sequence[str], environment: Mapping[str, str]) -> None:
        self.last_words = ""
        self._is_late = False
        command = [sys.executable, "-m", f"{__package__}.compiler", str(folder), *names]
        settings = {**environment, **numba_environment(folder / _NUMBA_FOLDER, threads=1), "NUMBA_OPT": "0"}
        self._process = subprocess.Popen(
            command,
            env=settings,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read(self, on_unit: Callable[[], None]) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        for _ in self._process.stdout:
            on_unit()
        lines = [line for line in self._process.stderr.read().splitlines() if line.strip()]
        self.last_words = lines[-1].strip() if lines else ""

    def stop_if_late(self, *, is_late: bool) -> None:
        if is_late:
            self._process.kill()
            self._is_late = True

    def finish(self) -> None:
        """Wait for the end; the pipes have been read."""
        status = self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        if self._is_late:
            self.last_words = f"not done after {COMPILE_DEADLINE_S:g} s"
        elif status and not self.last_words:
            self.last_words = f"exit status {status}"


@contextmanager
def _locked(file: IO[str]) -> Iterator[None]:
    """An exclusive lock on a file that the kernel drops with the process; the file is closed at the end."""
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
