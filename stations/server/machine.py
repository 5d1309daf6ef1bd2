"""What a station asks of the machine it runs on: memory there is, memory it uses, threads of its libraries."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import MutableMapping

_LIBRARY_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def pin_threads(environment: MutableMapping[str, str], kernel_threads: int) -> None:
    """One thread for BLAS, `kernel_threads` for numba. Must come before numpy is imported.

    A second BLAS thread on a shared core turned 24 µs into 8 ms.
    """
    for variable in _LIBRARY_VARIABLES:
        environment[variable] = "1"
    environment["NUMBA_NUM_THREADS"] = str(kernel_threads)


def physical_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def resident_bytes() -> int:
    """Memory this process holds now, shared pages included; its peak where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
