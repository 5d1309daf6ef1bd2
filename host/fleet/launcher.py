"""The launcher: the stations of a plan as children of this process, on ports the system chooses.

An asyncio context manager without global state, used by `Engine.launch` and by `aeonflow up` alike. It starts a few
stations at a time (each start is a second of one core), keeps the fleet's secret in a file only its owner can read,
restarts what dies, and leaves no process behind: on a normal end by SIGTERM and SIGKILL, on its own death because
every station watches its stdin.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from host.plan import StationSpec

from .elsewhere import ElsewhereStation
from .errors import FleetError, StationStartError, describe_log
from .logs import StationLog, log_path
from .scratch import ScratchFolder
from .spec import StationOptions
from .station import FleetStation, RestartPolicy, StationContext, StationState

STATION_START_S = 120.0  # a first start may compile kernels, on a slow machine
FLEET_START_S = 180.0  # and 2 s more for each station beyond 40
DRAIN_S = 7.0  # a station gives what it runs 5 s by itself
STARTS_A_CORE = 2

_DEFAULT_RESTART = RestartPolicy()


class Fleet:
    """Stations as children. `async with Fleet(specs, options) as fleet:` has them all ready inside the block.

    `directory` keeps token and logs (0700, made when missing); without one a temporary directory is used and removed.
    `wrap(spec)` are words put before a station's command (`ip netns exec …`); they must become the process itself.
    `on_change(station)` is called at every change of a station's state, in the event loop.
    """

    def __init__(
        self,
        specs: Iterable[StationSpec],
        options: StationOptions,
        *,
        name: str = "",
        directory: Path | None = None,
        token: str = "",
        station_timeout_s: float = STATION_START_S,
        fleet_timeout_s: float | None = None,
        drain_s: float = DRAIN_S,
        restart: RestartPolicy | None = _DEFAULT_RESTART,
        concurrency: int = 0,
        python: str = sys.executable,
        wrap: Callable[[StationSpec], tuple[str, ...]] = lambda spec: (),
        environ: Mapping[str, str] | None = None,
        on_change: Callable[[FleetStation], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._specs = tuple(specs)
        if not self._specs:
            raise FleetError("a fleet needs at least 1 station, the plan has 0")
        self.name = name or f"run-{os.getpid()}-{secrets.token_hex(3)}"
        self.options = options
        self.token = token or secrets.token_urlsafe(32)
        self.directory = directory
        self._scratch: ScratchFolder | None = None
        self._station_timeout_s = station_timeout_s
        self._fleet_timeout_s = fleet_timeout_s or FLEET_START_S + 2.0 * max(0, len(self._specs) - 40)
        self._drain_s = drain_s
        self._restart = restart
        self._concurrency = concurrency or STARTS_A_CORE * usable_cores()
        self._python = python
        self._wrap = wrap
        self._environ = dict(os.environ if environ is None else environ)
        self._on_change = on_change or _ignore
        self._rng = rng or random.Random()
        self._stations: tuple[FleetStation | ElsewhereStation, ...] = ()
        self._children: tuple[FleetStation, ...] = ()
        self._watchers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()  # set at the next change, then replaced

    @property
    def stations(self) -> tuple[FleetStation | ElsewhereStation, ...]:
        """In the plan's order, those that run elsewhere included; empty before `start`."""
        return self._stations

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(station.url for station in self._stations)

    @property
    def token_file(self) -> Path:
        assert self.directory is not None, "the fleet has not been started"
        return self.directory / "token"

    def station(self, name: str) -> FleetStation:
        """The station called `name` that was started here. Errors: FleetError with the names there are."""
        for station in self._children:
            if station.name == name:
                return station
        known = ", ".join(station.name for station in self._children)
        raise FleetError(f"fleet {self.name} did not start a station {name!r}; it started {known or 'none'}")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start all stations and wait until every one is ready.

        Errors: StationStartError naming the station, its exit status and last log lines; no process is left then.
        """
        self._prepare()
        try:
            await self._start_all()
        except BaseException:
            await asyncio.shield(self.stop(drain_s=0.0))
            raise
        self._watchers = [asyncio.create_task(self._watch(s), name=f"watch {s.name}") for s in self._children]

    async def stop(self, drain_s: float | None = None) -> None:
        """SIGTERM to all at once, SIGKILL to those that are left after `drain_s`. Idempotent.

        A cancellation meanwhile cuts the grace short; the processes are reaped all the same.
        """
        stopping = asyncio.create_task(self._stop(self._drain_s if drain_s is None else drain_s))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            for station in self._children:
                station.kill()
            await stopping
            raise

    async def _stop(self, grace_s: float) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await asyncio.gather(*(station.stop(grace_s) for station in self._children))
        self._clean_up()

    async def wait_ready(self, name: str, timeout_s: float) -> FleetStation:
        """Until the station is ready (again). Errors: StationStartError when it was given up or is late."""
        station = self.station(name)
        try:
            async with asyncio.timeout(timeout_s):
                while station.state not in (StationState.READY, StationState.FAILED, StationState.STOPPED):
                    await self._changed.wait()
        except TimeoutError:
            raise StationStartError(
                f"station {name} is {station.state} after {timeout_s:g} s{describe_log(station.log_tail())}",
                station=name,
            ) from None
        if station.state is not StationState.READY:
            raise StationStartError(
                f"station {name} is {station.state}{describe_log(station.log_tail())}", station=name
            )
        return station

    def _prepare(self) -> None:
        if self._stations:
            raise FleetError(f"fleet {self.name} was started before; make a new one")
        if self.directory is None:
            self._scratch = ScratchFolder()
            self.directory = self._scratch.path
        else:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.directory.chmod(0o700)
        write_secret(self.token_file, self.token)
        for spec in self._specs:  # what an earlier fleet of this name wrote
            log_path(self.directory, spec.name).unlink(missing_ok=True)
        context = StationContext(
            fleet=self.name,
            options=self.options,
            token_file=self.token_file,
            environ=self._environ,
            python=self._python,
            start_timeout_s=self._station_timeout_s,
            wrap=self._wrap,
        )
        self._stations = tuple(
            FleetStation(spec, context, StationLog(log_path(self.directory, spec.name)), self._note_change)
            if spec.url is None
            else ElsewhereStation(spec, spec.url)
            for spec in self._specs
        )
        self._children = tuple(station for station in self._stations if isinstance(station, FleetStation))

    async def _start_all(self) -> None:
        gate = asyncio.Semaphore(self._concurrency)

        async def start(station: FleetStation) -> None:
            async with gate:
                await station.start()

        try:
            async with asyncio.timeout(self._fleet_timeout_s), asyncio.TaskGroup() as group:
                for station in self._children:
                    group.create_task(start(station), name=f"start {station.name}")
        except TimeoutError:
            late = [s.name for s in self._children if s.state is not StationState.READY]
            shown = ", ".join(late[:8]) + (f" and {len(late) - 8} more" if len(late) > 8 else "")
            raise StationStartError(
                f"fleet {self.name}: {len(late)} of {len(self._children)} stations not ready within "
                f"{self._fleet_timeout_s:g} s: {shown}{describe_log(self.station(late[0]).log_tail() if late else ())}",
                station=late[0] if late else "",
            ) from None
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None  # the first to fail; the others were cancelled for it

    async def _watch(self, station: FleetStation) -> None:
        """Restart the station whenever it dies, with a growing pause, until it is given up."""
        attempt = 0
        while True:
            started = time.monotonic()
            if station.state is StationState.READY:
                await station.wait_dead()
            if self._restart is None or attempt >= self._restart.max_in_a_row:
                station.give_up()
                return
            attempt = 0 if time.monotonic() - started >= self._restart.stable_s else attempt
            await asyncio.sleep(self._restart.delay_s(attempt, self._rng))
            attempt += 1
            station.restarts += 1
            try:
                await station.start()
            except StationStartError as exc:
                station.note(str(exc))

    def _note_change(self, station: FleetStation) -> None:
        self._on_change(station)
        self._changed.set()
        self._changed = asyncio.Event()

    def _clean_up(self) -> None:
        if self.directory is not None:
            self.token_file.unlink(missing_ok=True)
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def write_secret(path: Path, secret: str) -> None:
    """Write a file that only its owner can read; never readable by others, not even for a moment."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")


def _ignore(station: FleetStation) -> None:
    return None
