"""Compiled kernels of every weight type, in the user's compile cache: built once, then loaded in milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stations.kernels.fast.backend import FastKernels
from stations.kernels.fast.cache import CompileCache
from stations.kernels.fast.loader import LoadedUnits
from stations.kernels.fast.target import current_target
from stations.kernels.fast.units import ALL_UNITS
from stations.models.roles import all_roles
from stations.models.store import cache_folder


@pytest.fixture(scope="session")
def compile_cache() -> CompileCache:
    cache = CompileCache(cache_folder(os.environ), current_target(os.environ), os.environ)
    cache.ensure(ALL_UNITS)
    return cache


@pytest.fixture(scope="session")
def units(compile_cache: CompileCache) -> LoadedUnits:
    return LoadedUnits(compile_cache, ALL_UNITS)


@pytest.fixture
def fast(compile_cache: CompileCache, units: LoadedUnits) -> Callable[..., Any]:
    """`fast(weights, threads=1)`: the fast kernels of a model in memory, every role."""
    made = []

    def make(weights: Any, threads: int = 1) -> FastKernels:
        kernels = FastKernels(weights, all_roles(weights.card.num_layers), threads, compile_cache, units)
        made.append(kernels)
        return kernels

    yield make
    for kernels in made:
        kernels.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs compiled kernels waits for the compiler on a machine that has none yet."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))
