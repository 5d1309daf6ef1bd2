"""Real hosts emulated: every station in a network namespace of its own, its packets delayed by `tc netem`.

A namespace in the middle holds a bridge; each station's namespace and this process are joined to it by a veth pair.
Whoever sends is delayed once, on its own end, so a crossing takes the delay plus what the kernel and TCP take: unlike
with `--link-delay-ms`, acknowledgements travel as far as data. Needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN), `ip` and
`tc`, and for a delay above 0 the kernel's netem. Addresses are of 198.18.0.0/15, kept for measurements (RFC 2544).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import msgspec

from ..errors import HostError
from ..fleet import Fleet, StationOptions
from ..launch import find_model
from ..plan import StationSpec, make_plan

PREFIX = "aeonbench"
COMMAND_S = 10.0
MAX_STATIONS = 250  # addresses of one /24
QUEUE_PACKETS = 100_000  # netem holds what is on the way; its own limit of 1,000 would drop


class NetnsUnavailableError(HostError):
    """Network namespaces cannot be used here; the message says what is missing."""

    code = "netns"


class NetworkNamespaces:
    """Namespaces that exist inside the `with` block. `delay_ms`: one way, on every crossing.

    Raises NetnsUnavailableError on entering, and then nothing is left behind.
    """

    def __init__(self, delay_ms: float) -> None:
        self._delay_ms = delay_ms
        self._tag = f"{os.getpid()}-{secrets.token_hex(2)}"
        self._subnet = f"198.18.{secrets.randbelow(256)}"
        self._made: list[str] = []
        self._device = f"ab{secrets.token_hex(4)}"
        self._addresses: dict[str, str] = {}

    def __enter__(self) -> Self:
        _check_tools()
        remove_leftovers()
        try:
            self._make_middle()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(NetnsUnavailableError):  # it may not have been made
            _run("ip", "link", "del", self._device)
        for namespace in reversed(self._made):
            with contextlib.suppress(NetnsUnavailableError):
                _run("ip", "netns", "del", namespace)
        self._made.clear()

    def add(self, station: str) -> str:
        """A namespace for `station`; returns the address it has there."""
        if len(self._addresses) >= MAX_STATIONS:
            raise NetnsUnavailableError(f"at most {MAX_STATIONS} stations have room in one subnet")
        number = len(self._addresses) + 2
        namespace, address = self._namespace(str(number)), f"{self._subnet}.{number}"
        self._make(namespace)
        middle = self._namespace("middle")
        port = f"p{number}"
        _run("ip", "-n", middle, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "-n", middle, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        self._delay(("-n", namespace), "eth0")
        self._addresses[station] = address
        return address

    def wrap(self, spec: StationSpec) -> tuple[str, ...]:
        """What goes before the command of a station that was added."""
        number = self._addresses[spec.name].rpartition(".")[2]
        return ("ip", "netns", "exec", self._namespace(number))

    def _make_middle(self) -> None:
        middle, device = self._namespace("middle"), self._device
        self._make(middle)
        _run("ip", "-n", middle, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", middle, "link", "set", "bridge", "up")
        _run("ip", "link", "add", device, "type", "veth", "peer", "name", "p1", "netns", middle)
        _run("ip", "-n", middle, "link", "set", "p1", "master", "bridge", "up")
        _run("ip", "addr", "add", f"{self._subnet}.1/24", "dev", device)
        _run("ip", "link", "set", device, "up")
        self._delay((), device)

    def _make(self, namespace: str) -> None:
        _run("ip", "netns", "add", namespace)
        self._made.append(namespace)

    def _delay(self, where: tuple[str, ...], device: str) -> None:
        if not self._delay_ms:
            return
        netem = ("netem", "delay", f"{round(1000 * self._delay_ms)}us", "limit", str(QUEUE_PACKETS))
        try:
            _run("tc", *where, "qdisc", "add", "dev", device, "root", *netem)
        except NetnsUnavailableError as error:
            raise NetnsUnavailableError(
                f"a delay of {self._delay_ms:g} ms needs tc netem (kernel module sch_netem): {error}; "
                "without it use --link-delay-ms alone, or --netns with a delay of 0"
            ) from None

    def _namespace(self, what: str) -> str:
        return f"{PREFIX}-{self._tag}-{what}"


@asynccontextmanager
async def launched_in_namespaces(
    namespaces: NetworkNamespaces, model: str, plan: str, of_stations: dict[str, Any]
) -> AsyncIterator[Fleet]:
    """The stations of a plan, each in its own namespace. NetnsUnavailableError for one that lives in this process."""
    name, num_layers = await find_model(model)
    made = make_plan(plan, num_layers)
    if made.embedded:
        raise NetnsUnavailableError(f"plan {plan} is this process alone: it has no network")
    specs = [msgspec.structs.replace(spec, host=namespaces.add(spec.name)) for spec in made.stations]
    options = StationOptions(model=name, extra=("--insecure",), **of_stations)
    async with Fleet(specs, options, wrap=namespaces.wrap) as fleet:
        yield fleet


def remove_leftovers() -> None:
    """Delete the namespaces of benches that were killed: their devices go with them."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.strip() else ""
        if name.startswith(f"{PREFIX}-") and not _is_alive(name.split("-")[1]):
            with contextlib.suppress(NetnsUnavailableError):
                _run("ip", "netns", "del", name)


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True


def _check_tools() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise NetnsUnavailableError(f"{' and '.join(missing)} not found: install iproute2")
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise NetnsUnavailableError("network namespaces need root; run the command with sudo")


def _run(*command: str) -> str:
    """The command's output; NetnsUnavailableError with its words when it fails."""
    done = _completed(command)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise NetnsUnavailableError(f"`{' '.join(command)}` failed: {said}")
    return done.stdout


def _completed(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetnsUnavailableError(f"`{' '.join(command)}`: {error}") from None
