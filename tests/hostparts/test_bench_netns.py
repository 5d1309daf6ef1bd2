"""Network namespaces of `bench trisplit --netns`: refused by name where they cannot be, and gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from host.bench.prompts import BenchPrompt
from host.bench.trisplit import Cell, measure_cell
from host.bench.trisplit_netns import PREFIX, NetnsUnavailableError, NetworkNamespaces, remove_leftovers


def namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-{os.getpid()}-")]


def why_not() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    try:
        with NetworkNamespaces(0.0):
            return ""
    except NetnsUnavailableError as error:
        return str(error)


def can_netem() -> bool:
    try:
        with NetworkNamespaces(1.0):
            return True
    except NetnsUnavailableError:
        return False


@pytest.fixture
def _namespaces() -> None:
    if reason := why_not():
        pytest.skip(reason)


def test_a_tool_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else f"/sbin/{name}")
    with pytest.raises(NetnsUnavailableError, match="tc not found: install iproute2"), NetworkNamespaces(1.0):
        pass


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetnsUnavailableError, match="need root"), NetworkNamespaces(1.0):
        pass


@pytest.mark.usefixtures("_namespaces")
def test_a_delay_without_netem_is_refused_and_nothing_is_left() -> None:
    if can_netem():
        pytest.skip("this kernel has netem")
    with pytest.raises(NetnsUnavailableError, match=r"sch_netem.*--link-delay-ms"), NetworkNamespaces(5.0):
        pass
    assert namespaces() == []


@pytest.mark.usefixtures("_namespaces")
def test_an_error_inside_leaves_no_namespace() -> None:
    def fail_inside() -> None:
        with NetworkNamespaces(0.0) as made:
            made.add("attn")
            assert len(namespaces()) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert namespaces() == []


@pytest.mark.usefixtures("_namespaces")
def test_what_a_killed_bench_left_is_removed_by_the_next() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    name = f"{PREFIX}-{gone.pid}-beef-middle"
    subprocess.run(["ip", "netns", "add", name], check=True)
    remove_leftovers()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert name not in listed


@pytest.mark.slow
@pytest.mark.usefixtures("_namespaces")
@pytest.mark.parametrize("delay_ms", [0.0, 5.0])
async def test_stations_in_namespaces_of_their_own_give_the_tokens(tiny_model: Path, delay_ms: float) -> None:
    if delay_ms and not can_netem():
        pytest.skip("this kernel has no netem")
    cell = Cell(kernels="reference", new_tokens=3, link_delay_ms=delay_ms)
    prompt = BenchPrompt("hello", "Hello")
    here = await measure_cell(cell, model=str(tiny_model), prompt=prompt, limit_s=60.0)
    apart = Cell(kernels="reference", new_tokens=3, link_delay_ms=delay_ms, netns=True)
    there = await measure_cell(apart, model=str(tiny_model), prompt=prompt, limit_s=60.0)
    assert there.report["token_ids"] == here.report["token_ids"]
    assert there.report["hops_per_token"] == 15
    assert there.report["obtained_delay_s"] >= delay_ms / 1000
    assert namespaces() == []
