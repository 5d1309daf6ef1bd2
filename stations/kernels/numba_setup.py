"""What the environment must say before numba or numpy is imported. Imports neither."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

_BLAS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def numba_environment(cache_folder: Path, threads: int) -> dict[str, str]:
    """Settings for a process that imports numba: its disk cache, and its own thread pool, which we do not use."""
    return {"NUMBA_CACHE_DIR": str(cache_folder), "NUMBA_NUM_THREADS": str(threads)}


def configure_numba(environment: MutableMapping[str, str], threads: int) -> None:
    """One BLAS and numba thread a process, unless the user has set another number; `threads` bounds numba's.

    To be called with `os.environ` before numpy is imported: on a shared core a second BLAS thread turned 24 µs
    into 8 ms. The fast kernels' own threads are not concerned.
    """
    for name in _BLAS:
        environment.setdefault(name, "1")
    environment.setdefault("NUMBA_NUM_THREADS", str(threads))
