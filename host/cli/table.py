"""The live picture of a fleet in the foreground: a table that redraws on a terminal, lines elsewhere."""

from __future__ import annotations

from typing import Any

from host.fleet.errors import describe_exit
from host.fleet.state import FleetState

from .output import note

SHOWN_STATIONS = 24  # a terminal has no more lines; the rest are counted


class FleetTable:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        self._live: Live | None = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._seen: dict[str, str] = {}

    def __enter__(self) -> FleetTable:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*exc)

    def show(self, state: FleetState) -> None:
        if self._live is not None:
            self._live.update(_drawn(state), refresh=True)
            return
        for station in state.stations:
            if self._seen.get(station.name, "new") != station.state and station.state in ("ready", "dead", "failed"):
                where = f" at {station.url}" if station.url else ""
                last = station.exit_status  # a death may be over by the time one looks: states are written now and then
                why = f"; its last process: {describe_exit(last)}" if last is not None else ""
                note(f"station {station.name} is {station.state}{where}{why}")
            self._seen[station.name] = station.state

    def up(self, state: FleetState) -> None:
        self.show(state)
        note(f"fleet {state.name} is up: {len(state.stations)} stations; Ctrl-C stops it")


def _drawn(state: FleetState) -> Any:
    from rich.table import Table

    ready = sum(station.state == "ready" for station in state.stations)
    title = f"fleet {state.name}: {state.plan} of {state.model}, {ready} of {len(state.stations)} stations ready"
    table = Table(
        "station", "roles", "pid", "address", "state", "restarts", title=title, title_justify="left", box=None
    )
    # Those in trouble first: they are why one looks.
    order = sorted(state.stations, key=lambda s: s.state == "ready")
    for s in order[:SHOWN_STATIONS]:
        roles = ",".join(s.roles)
        table.add_row(s.name, roles, str(s.pid or ""), s.url, s.state, str(s.restarts or ""))
    if len(order) > SHOWN_STATIONS:
        table.caption = f"and {len(order) - SHOWN_STATIONS} more"
    return table
