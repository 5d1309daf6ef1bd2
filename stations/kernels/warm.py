"""Fills the compile cache of the fast kernels, so that no user waits for a compiler at the first token."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models.folder import ModelFolder

Progress = Callable[[str, int, int], None]  # stage "compile", kernels done, kernels in all


def model_units(folder: ModelFolder) -> tuple[str, ...]:
    """Names of the compiled units that the model's weight kinds need in either fast set, whatever roles are here."""
    from ..models.manifest import VECTOR
    from .fast.units import units_of

    tensors = [(file.role, tensor) for file in folder.manifest.files for tensor in file.tensors]
    matrices = [(role, tensor) for role, tensor in tensors if tensor.kind != VECTOR]
    embedding = {tensor.kind for role, tensor in matrices if role == "embed"}
    products = {tensor.kind for role, tensor in matrices if role != "embed" or folder.manifest.tied_head}
    exact, int8 = units_of(products, embedding), units_of(products, embedding, is_int8=True)
    return tuple(dict.fromkeys((*exact, *int8)))


def warm(folder: ModelFolder, progress: Progress) -> None:
    """Compile what the model needs and the cache lacks. Raises KernelError where that is not possible."""
    compile_units(model_units(folder), progress)


def compile_units(names: Iterable[str], progress: Progress) -> None:
    """Have these units (`fast/units.py`) in the cache."""
    from ..models.store import cache_folder
    from .fast.cache import CompileCache
    from .fast.target import known_target

    folder = cache_folder(os.environ)
    cache = CompileCache(folder, known_target(os.environ, folder), os.environ)
    cache.ensure(tuple(names), lambda done, total: progress("compile", done, total))
