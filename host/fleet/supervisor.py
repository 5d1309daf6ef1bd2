"""The supervisor: a fleet that outlives commands. Holds the fleet's lock, writes its state, stops on a signal.

It runs in the foreground of `aeonflow up` or as the child that `aeonflow up --detach` leaves behind; both are this
one coroutine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from host.plan import Plan

from .errors import FleetError
from .launcher import Fleet
from .spec import StationOptions
from .state import FleetRegistry, FleetState, StationRecord
from .station import FleetStation

WRITE_PAUSE_S = 0.1  # 91 stations change state some 300 times while they start: one write for those of a moment
POLL_S = 0.05
LEFTOVER_GRACE_S = 3.0  # for stations to see their stdin close
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """One fleet, its lock and its state file. `on_change(state)` is called after every write."""

    def __init__(
        self,
        registry: FleetRegistry,
        name: str,
        plan: Plan,
        options: StationOptions,
        *,
        token: str = "",
        on_change: Callable[[FleetState], None] | None = None,
    ) -> None:
        self._registry = registry
        self._plan = plan
        self._options = options
        self._on_change = on_change
        self._started_at = time.time()
        self._is_up = False
        self._pending: asyncio.TimerHandle | None = None
        self.fleet = Fleet(
            plan.stations,
            options,
            name=name,
            directory=registry.directory(name),
            token=token,
            on_change=self._changed,
        )

    def state(self) -> FleetState:
        fleet, options = self.fleet, self._options
        return FleetState(
            name=fleet.name,
            token=fleet.token,
            supervisor_pid=os.getpid(),
            started_at=self._started_at,
            plan=self._plan.name,
            model=options.model,
            kernels=options.kernels,
            threads=options.threads,
            transport=options.transport,
            coalesce=options.coalesce,
            link_delay_ms=options.link_delay_ms,
            directory=str(self._registry.directory(fleet.name)),
            is_up=self._is_up,
            stations=tuple(
                StationRecord(
                    name=station.name,
                    roles=station.roles,
                    url=station.url,
                    pid=station.pid,
                    state=str(station.state),
                    exit_status=station.exit_status,
                    restarts=station.restarts,
                )
                for station in fleet.stations
            ),
        )

    async def run(self, *, on_up: Callable[[FleetState], None]) -> None:
        """Start the fleet, keep it until a stop signal, stop it. Errors: those of `Fleet.start`; FleetError when a
        fleet of that name runs."""
        with self._registry.lock(self.fleet.name):
            stopped = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, stopped.set)
            try:
                await self._start(stopped, on_up)
                await stopped.wait()
            finally:
                for number in STOP_SIGNALS:
                    loop.remove_signal_handler(number)
                await self.fleet.stop()
                if self._pending is not None:
                    self._pending.cancel()
                self._registry.remove(self.fleet.name)

    async def _start(self, stopped: asyncio.Event, on_up: Callable[[FleetState], None]) -> None:
        """Start, unless a stop signal comes first."""
        starting = asyncio.create_task(self.fleet.start(), name="start the fleet")
        stopping = asyncio.create_task(stopped.wait(), name="stop signal")
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return
            starting.result()
            self._is_up = True
            self._write()
            on_up(self.state())
        finally:
            for task in (starting, stopping):
                task.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)

    def _changed(self, station: FleetStation) -> None:
        if self._pending is None:
            self._pending = asyncio.get_running_loop().call_later(WRITE_PAUSE_S, self._write)

    def _write(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        state = self.state()
        self._registry.write(state)
        if self._on_change is not None:
            self._on_change(state)


def stop_fleet(registry: FleetRegistry, name: str, *, timeout_s: float = 30.0) -> str:
    """Stop the fleet called `name` and wait until it is gone; says what was done.

    A supervisor that does not leave in time is killed; its stations see their stdin close and leave, and one that
    cannot (it was stopped by SIGSTOP) is killed too. What a dead supervisor left is removed.
    """
    state = registry.read(name)
    if not registry.is_alive(name):
        _kill_leftovers(state)
        registry.remove(name)
        return f"fleet {name} was not running (its supervisor had died); what it left is removed"
    _signal(state.supervisor_pid, signal.SIGTERM)
    if _wait_gone(registry, name, timeout_s):
        count = len(state.stations)
        return f"fleet {name} is down: {count} station{'s' if count != 1 else ''} stopped"
    _signal(state.supervisor_pid, signal.SIGKILL)
    if not _wait_gone(registry, name, timeout_s):
        raise FleetError(f"fleet {name}: supervisor pid {state.supervisor_pid} lives {timeout_s:g} s after SIGKILL")
    _kill_leftovers(state)
    registry.remove(name)
    return f"fleet {name} is down: its supervisor had to be killed, {timeout_s:g} s after SIGTERM"


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as exc:
        raise FleetError(f"process {pid} belongs to another user") from exc


def _wait_gone(registry: FleetRegistry, name: str, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while registry.is_alive(name):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _kill_leftovers(state: FleetState) -> None:
    """Kill stations of the state that outlive their supervisor, each only if it still carries the fleet's name."""
    mark = f"AEONFLOW_FLEET={state.name}".encode()
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    for station in state.stations:
        while station.pid and _carries(station.pid, mark):
            if time.monotonic() >= deadline:
                _signal(station.pid, signal.SIGKILL)
                break
            time.sleep(POLL_S)


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or a system without /proc: then stdin's end is all there is, and it is enough
        return False
