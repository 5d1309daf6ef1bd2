"""The numerics id: every weight type makes the expected bits here, on a CPU with less, and in any company of roles."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from stations.kernels.fast.backend import FastBackend
from stations.kernels.fast.expected import EXPECTED, EXPECTED_INT8
from stations.kernels.fast.loader import LoadedUnits
from stations.kernels.fast.numerics import EXPECTED_ID, EXPECTED_INT8_ID, found_digests, identify, numerics_id
from stations.kernels.fast.target import current_target, settings_without
from stations.models.roles import RoleSpan

from .tiny import TinyWeights

ALL = EXPECTED | EXPECTED_INT8

_CHILD = """
import json, os, sys
from pathlib import Path
from stations.kernels.fast.cache import CompileCache
from stations.kernels.fast.loader import LoadedUnits
from stations.kernels.fast.loader import LoadedUnits
from stations.kernels.fast.numerics import found_digests
from stations.kernels.fast.target import current_target
from stations.kernels.fast.units import units_of
from stations.models.store import cache_folder
target = current_target(os.environ)
cache = CompileCache(cache_folder(os.environ), target, os.environ)
names = tuple({*units_of(sys.argv[1:], sys.argv[1:]), *units_of(sys.argv[1:], is_int8=True)})
cache.ensure(names)
units = LoadedUnits(cache, names)
print(json.dumps([target.row_tiles, found_digests(names, units, cache), "numba" in sys.modules]))
"""


def _digests_on(environment: dict[str, str], kinds: list[str]) -> list:
    command = [sys.executable, "-c", _CHILD, *kinds]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_unit_makes_the_expected_bits(units, compile_cache) -> None:
    assert found_digests(units.names, units, compile_cache) == ALL
    exact = LoadedUnits(compile_cache, [name for name in units.names if not name.startswith("int8.")])
    assert numerics_id(exact, compile_cache) == EXPECTED_ID
    assert numerics_id(units, compile_cache, is_int8=True) == EXPECTED_INT8_ID


def test_stations_of_different_roles_and_kinds_have_one_id() -> None:
    ids = {
        FastBackend(TinyWeights("q8_0"), [RoleSpan("embed")]).numerics_id,
        FastBackend(TinyWeights("q4_1"), [RoleSpan("attn", 0, 1)]).numerics_id,
        FastBackend(TinyWeights("q6_k"), [RoleSpan("down", 1, 1), RoleSpan("head")]).numerics_id,
    }
    assert ids == {EXPECTED_ID}


def test_other_bits_give_another_id() -> None:
    found = {"product.q4_1": EXPECTED["product.q4_1"], "lookup.q8_0": EXPECTED["lookup.q8_0"]}
    assert identify(found) == EXPECTED_ID
    assert identify(found | {"attend": "0" * 64}) != EXPECTED_ID
    broken = found | {"lookup.q8_0": "0" * 64}
    assert identify(broken) not in (EXPECTED_ID, identify(broken | {"lookup.q8_0": "1" * 64}))
    assert identify(found | {"product.q3_x": "0" * 64}) != EXPECTED_ID
    assert identify(found, is_int8=True) == EXPECTED_INT8_ID != EXPECTED_ID
    assert identify({"int8.q4_1": EXPECTED_INT8["int8.q4_1"]}) not in (EXPECTED_ID, EXPECTED_INT8_ID)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="features named here are x86's")
def test_a_cpu_without_avx512_makes_the_same_bits_in_smaller_tiles() -> None:
    without = settings_without("avx512", current_target(os.environ))
    tiles, found, _ = _digests_on(without, ["q4_1", "q8_0"])
    assert tiles == [3, 2, 1]
    assert found == {name: ALL[name] for name in found}
    assert {"attend", "int8.q4_1", "int8.q8_0", "product.q4_1"} < found.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({name.partition(".")[2] for name in EXPECTED} - {""}))
def test_a_generic_cpu_makes_the_same_bits_for_every_kind(kind: str) -> None:
    _, found, _ = _digests_on({"NUMBA_CPU_NAME": "generic"}, [kind])
    assert found == {name: ALL[name] for name in found}
    assert len(found) == 3 + (f"int8.{kind}" in ALL)


def test_warm_kernels_load_without_numba(compile_cache) -> None:
    _, found, has_numba = _digests_on({}, ["q4_1", "q8_0"])
    assert len(found) == 7
    assert not has_numba
