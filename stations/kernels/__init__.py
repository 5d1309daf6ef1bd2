"""Kernel sets and how one is chosen. Importing this imports neither numba nor a kernel set."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from aeonflow.errors import UnsupportedError

from ..errors import KernelError
from ..models.roles import RoleSpan
from .base import Backend, Span, vocab_range
from .weights import Weights

KERNEL_SETS = ("fast", "fast-int8", "reference")

__all__ = ["KERNEL_SETS", "Backend", "Span", "make_backend", "vocab_range"]


def make_backend(name: str, folder: Weights, roles: Iterable[RoleSpan], threads: int = 1) -> Backend:
    """The kernel set `name` over the roles' weights of a model folder.

    `threads` is for `fast` and `fast-int8`; BLAS threads of `reference` are set by the environment before numpy is
    imported. Where numba is not installed, `reference` runs row by row, so that rows do not depend on their company
    there either.
    Raises UnsupportedError for an unknown name, KernelError where these cannot be compiled or loaded.
    """
    if name == "reference":
        from .reference import ReferenceBackend

        return ReferenceBackend(folder, roles, row_by_row=importlib.util.find_spec("numba") is None)
    if name in ("fast", "fast-int8"):
        try:
            from .fast import FastBackend
        except ImportError as error:
            raise KernelError(f"kernels {name} cannot be used here ({error}); reference can") from error
        return FastBackend(folder, roles, threads, is_int8=name == "fast-int8")
    raise UnsupportedError(f"kernels {name!r}: known are {', '.join(KERNEL_SETS)}")
