"""What the environment must say to a process that compiles, before numba is imported there. Imports no numba."""

from __future__ import annotations

from pathlib import Path


def numba_environment(cache_folder: Path, threads: int) -> dict[str, str]:
    """Settings for a process that imports numba: its disk cache, its own thread pool, which we do not use."""
    return {"NUMBA_CACHE_DIR": str(cache_folder), "NUMBA_NUM_THREADS": str(threads)}
