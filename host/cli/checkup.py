"""The findings of `aeonflow doctor`: facts about this machine, and about the fleet that runs."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from host.fleet.launcher import usable_cores
from host.fleet.state import FleetRegistry, cache_root

from .cache import DEFAULT_MODEL, cached_models, human_bytes
from .failure import one_line
from .loop import run_async

if TYPE_CHECKING:
    from host.engine import Engine

    from .target import Target

OLDEST_PYTHON = (3, 11)
MIN_FREE_DISK_BYTES = 1 << 30  # a small model, unpacked, beside its source
STATION_BYTES = 150 << 20  # private memory of one station at most
RTT_SAMPLES = 20
STANDARD_FALLBACKS = {
    "numba": "the `reference` kernels are all there is: slow",
    "picows": "the `websockets` library is used: a hop costs more",
    "uvloop": "asyncio's own event loop is used: a hop costs more",
}


class Finding(NamedTuple):
    """`verdict`: ok, note (works, could be better) or bad."""

    verdict: str
    check: str
    found: str


def check_machine() -> Iterator[Finding]:
    """Python, libraries, cores, memory, cache, models, ports."""
    found = ".".join(str(n) for n in sys.version_info[:3])
    verdict = "ok" if sys.version_info >= OLDEST_PYTHON else "bad"
    yield Finding(verdict, "python", f"{found} at {sys.executable} (3.11 or later is needed), {platform.machine()}")
    for name, without in STANDARD_FALLBACKS.items():
        yield _library(name, without)
    cores = usable_cores()
    yield Finding("ok", "cores", f"{cores} usable of {os.cpu_count()}")
    yield from _memory()
    yield from _cache()
    yield _models()
    yield _compile_cache()
    yield _loopback()


def check_fleet(fleet: str | None, token_file: Path | None, tls_ca: Path | None) -> Iterator[Finding]:
    """The fleet named, or every fleet that has a state file: alive, reachable from here, and station to station."""
    from .target import find_target, fleet_title, refuse_for_names

    if fleet is None or "://" not in fleet:
        refuse_for_names(token_file, tls_ca)
    registry = FleetRegistry(cache_root(os.environ))
    names = [fleet] if fleet is not None else registry.names()
    if not names:
        yield Finding("ok", "fleets", "none runs here")
    for name in names:
        label = fleet_title(name)
        try:
            target = find_target(name, token_file, tls_ca)
            yield from run_async(_probe_fleet(label, target))
        except Exception as exc:
            yield Finding("bad", label, one_line(exc))


async def _probe_fleet(label: str, target: Target) -> list[Finding]:
    async with target.connecting() as engine:
        found = [Finding("ok", label, f"{len(engine.network.stations)} stations answer here")]
        found += [await _round_trip(label, engine, index) for index in range(len(engine.network.stations))]
        status = await engine.status()
        if status["ready"]:
            passed = f"a probe token went station to station through all of them in {status['probe_s'] * 1e3:.1f} ms"
            found.append(Finding("ok", f"{label}: chain", passed))
        else:
            found.append(Finding("bad", f"{label}: chain", status["problem"]))
        return found


async def _round_trip(label: str, engine: Engine, index: int) -> Finding:
    """Host to station and back, by the smallest call there is."""
    from aeonflow.messages import Stats

    station = engine.network.stations[index]
    times = []
    for _ in range(RTT_SAMPLES):
        started = time.perf_counter()
        await station.ask(Stats())
        times.append(time.perf_counter() - started)
    middle, most = statistics.median(times) * 1e3, max(times) * 1e3
    reached = f"{station.url} answers in {middle:.2f} ms (median of {RTT_SAMPLES}, most {most:.2f})"
    return Finding("ok", f"{label}: {station.name}", reached)


def _library(name: str, without: str) -> Finding:
    try:
        importlib.import_module(name)
    except ImportError as exc:
        return Finding("note", name, f"cannot be imported ({exc}): {without}")
    try:
        return Finding("ok", name, version(name))
    except PackageNotFoundError:
        return Finding("ok", name, "present, version unknown")


def _memory() -> Iterator[Finding]:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        yield Finding("note", "memory", "this system does not say how much there is")
        return
    verdict = "ok" if free >= 4 * STATION_BYTES else "note"
    fits = free // STATION_BYTES
    yield Finding(verdict, "memory", f"{human_bytes(free)} free of {human_bytes(total)}: room for some {fits} stations")


def _cache() -> Iterator[Finding]:
    root = cache_root(os.environ)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
        free = shutil.disk_usage(root).free
    except OSError as exc:
        yield Finding("bad", "cache", f"{root} cannot be written: {exc.strerror} (AEONFLOW_HOME chooses another)")
        return
    verdict = "ok" if free >= MIN_FREE_DISK_BYTES else "note"
    yield Finding(verdict, "cache", f"{root}, {human_bytes(free)} free")


def _models() -> Finding:
    names = cached_models()
    if DEFAULT_MODEL in names:
        return Finding("ok", "models", ", ".join(names))
    missing = f"{DEFAULT_MODEL} is not imported: the first run pulls it"
    return Finding("note", "models", f"{', '.join(names)}; {missing}" if names else missing)


def _compile_cache() -> Finding:
    folder = cache_root(os.environ) / "jit"
    files = [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
    if not files:
        first = "a pull or the first start compiles them, which takes up to a minute"
        return Finding("note", "compiled kernels", f"none in {folder} yet: {first}")
    size = sum(p.stat().st_size for p in files)
    return Finding("ok", "compiled kernels", f"{len(files)} files, {human_bytes(size)} in {folder}")


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=2.0):
                return Finding("ok", "ports", "loopback gives and takes connections")
    except OSError as exc:
        return Finding("bad", "ports", f"no server on 127.0.0.1: {exc.strerror or exc}")
