"""How kernels are compiled: numba's options in one place.

No fast-math: the order of operations is the one written. Compiled code is cached on disk beside the module or in
NUMBA_CACHE_DIR. numba's key sees the file of a function, not those of the intrinsics and constants in it: whoever names
a folder versions it, the one beside the module is another for each state of the sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numba import config, njit
from numba.extending import intrinsic as _intrinsic

from .units import SOURCES, source_digest

_CONFIG: Any = config
if not _CONFIG.CACHE_DIR:
    _STATE = "".join(source_digest(family)[:4] for family in SOURCES)
    _CONFIG.CACHE_DIR = str(Path(__file__).parent / "__pycache__" / _STATE)

compiled: Any = njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
intrinsic: Any = _intrinsic
# what only other compiled code, or an object file, calls: no wrappers for Python, no cache of numba's own
_BARE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
kernel: Any = njit(nogil=True, boundscheck=False, error_model="numpy", **_BARE)
