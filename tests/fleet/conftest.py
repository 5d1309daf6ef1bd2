"""Fleets of scripted children: the launcher's own behaviour, without models."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from host.fleet import Fleet, StationOptions
from host.plan import Plan, StationSpec, parse_roles

SCRIPT = Path(__file__).with_name("scripted.py")

MakeFleet = Callable[..., Fleet]


@pytest.fixture(scope="session")
def scripted_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An executable that ignores `-P -m stations station` and plays the station that `--name` asks for."""
    path = tmp_path_factory.mktemp("bin") / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPT}" "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def make_fleet(scripted_python: str) -> MakeFleet:
    """`make_fleet("a", "b", **keywords of Fleet)`: scripted stations of these names, not started yet."""

    def make(*names: str, **keywords: Any) -> Fleet:
        options = StationOptions(model="none")
        return Fleet(specs(*names), options, python=scripted_python, **keywords)

    return make


def specs(*names: str) -> tuple[StationSpec, ...]:
    return tuple(StationSpec(name, parse_roles("block:0-3")) for name in names)


def plan_of(*names: str) -> Plan:
    return Plan("scripted", 4, specs(*names))


def is_alive(pid: int) -> bool:
    """Does a process of this id exist, zombies included?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children_of(pid: int) -> list[int]:
    """Ids of the direct children of a process, zombies included."""
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]
