"""How `aeonflow up` runs its supervisor: here with a live table, or in a child that stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from host.fleet.spec import StationOptions
from host.fleet.state import FleetState, already_runs
from host.fleet.supervisor import Supervisor

from .failure import CommandFailedError, one_line
from .groups import option_name
from .loop import run_async
from .model import ready_model
from .output import note

SUPERVISOR_LOG = "supervisor.log"


class FleetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` was asked for; None where the user left the choice to us."""

    name: str
    plan: str
    model: str | None
    kernels: str | None
    threads: int | None
    transport: str | None
    coalesce: str | None
    link_delay_ms: float | None
    token_file: Path | None


def run_foreground(request: FleetRequest) -> None:
    """Supervise here until Ctrl-C; a table of the stations on a terminal, a line a change elsewhere."""
    from .table import FleetTable

    with FleetTable() as table:
        supervisor = _supervisor(request, on_change=table.show)
        run_async(supervisor.run(on_up=table.up))
    note(f"fleet {request.name} is down")


def run_reporting(request: FleetRequest, report_fd: int) -> None:
    """Supervise in the background; progress and the one verdict go to the pipe that the parent reads."""
    from .table import FleetTable

    with os.fdopen(report_fd, "w") as pipe:
        report, log = _Reporter(pipe), FleetTable()  # stderr is the supervisor's log

        def changed(state: FleetState) -> None:
            report.progress(state)
            log.show(state)

        try:
            supervisor = _supervisor(request, on_change=changed)
            run_async(supervisor.run(on_up=report.up))
        except BaseException as exc:
            report.send({"event": "error", "message": one_line(exc)})
            raise


def run_detached(request: FleetRequest) -> dict[str, Any]:
    """Start the supervisor as a child of its own session, wait until the fleet is up, and leave it.

    Returns what `up --detach --json` prints: name, plan, model, stations, supervisor_pid.
    """
    from host.plan import make_plan

    from .target import registry

    fleets = registry()
    if fleets.is_alive(request.name):
        raise CommandFailedError(already_runs(request.name))
    model = ready_model(request.model)  # here, where its progress is seen
    make_plan(request.plan, model.num_layers)  # a plan that cannot run needs no supervisor to say so
    directory = fleets.directory(request.name)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    read_end, write_end = os.pipe()
    with (directory / SUPERVISOR_LOG).open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "host.cli", "up", *_arguments(request), "--report-fd", str(write_end)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    os.close(write_end)
    try:
        with os.fdopen(read_end) as pipe:
            verdict = _follow(pipe)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if verdict.get("event") == "up":
        note(f"fleet {request.name} is up: {verdict['stations']} stations, supervisor pid {child.pid}")
        return {
            "name": request.name,
            "plan": request.plan,
            "model": model.name,
            "stations": verdict["stations"],
            "supervisor_pid": child.pid,
        }
    child.wait()
    raise CommandFailedError(verdict.get("message") or f"the supervisor ended; see {directory / SUPERVISOR_LOG}")


def _supervisor(request: FleetRequest, *, on_change: Callable[[FleetState], None]) -> Supervisor:
    from host.plan import make_plan

    from .target import read_token_file, registry

    model = ready_model(request.model)
    chosen: dict[str, Any] = {
        "kernels": request.kernels,
        "threads": request.threads,
        "transport": request.transport,
        "coalesce": None if request.coalesce is None else request.coalesce == "on",
        "link_delay_ms": request.link_delay_ms,
    }
    options = StationOptions(model=model.name, **{name: value for name, value in chosen.items() if value is not None})
    token = read_token_file(request.token_file) if request.token_file is not None else ""
    plan = make_plan(request.plan, model.num_layers)
    return Supervisor(registry(), request.name, plan, options, token=token, on_change=on_change)


def _arguments(request: FleetRequest) -> list[str]:
    given = msgspec.structs.asdict(request)
    return [part for name, value in given.items() if value is not None for part in (option_name(name), str(value))]


def _follow(pipe: Any) -> dict[str, Any]:
    """Show the child's progress; returns its verdict, or nothing when it ended without one."""
    shown = 0
    for line in pipe:
        event: dict[str, Any] = json.loads(line)
        if event["event"] != "progress":
            return event
        if event["ready"] * 4 // event["stations"] != shown:  # a line each quarter: 91 stations are many
            shown = event["ready"] * 4 // event["stations"]
            note(f"{event['ready']} of {event['stations']} stations ready")
    return {}


class _Reporter:
    """Writes events to the parent until the verdict, then closes: the parent may be gone."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def progress(self, state: FleetState) -> None:
        ready = sum(station.state == "ready" for station in state.stations)
        self.send({"event": "progress", "ready": ready, "stations": len(state.stations)})

    def up(self, state: FleetState) -> None:
        self.send({"event": "up", "stations": len(state.stations)})
        self._pipe.close()

    def send(self, event: dict[str, Any]) -> None:
        if self._pipe.closed:
            return
        try:
            self._pipe.write(json.dumps(event) + "\n")
            self._pipe.flush()
        except BrokenPipeError:  # the parent was interrupted; the fleet goes on, `aeonflow status` tells
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._pipe.fileno())
