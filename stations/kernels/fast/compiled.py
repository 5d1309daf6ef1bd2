"""How kernels are compiled: numba's options in one place.

No fast-math: the order of operations is the one written. Compiled code is cached on disk beside the module or in
NUMBA_CACHE_DIR; numba's key does not see constants of other modules, so whoever ships a cache versions its folder.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.extending import intrinsic as _intrinsic

compiled: Any = njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
intrinsic: Any = _intrinsic
# what only other compiled code, or an object file, calls: no wrappers for Python, no cache of numba's own
_BARE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
kernel: Any = njit(nogil=True, boundscheck=False, error_model="numpy", **_BARE)
