"""Stations that another process of this machine supervises, as its state file and their logs tell of them.

With this the engine of `--fleet NAME` can say how a station ended that it did not start.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from .logs import last_lines, log_path
from .state import FleetState, StationRecord, read_state, state_path


class RecordedFleet:
    """The newest state of a fleet; the file is read again only when it has been replaced."""

    def __init__(self, state: FleetState) -> None:
        self.directory = Path(state.directory)
        self._path = state_path(self.directory)
        self._records: dict[str, StationRecord] = {}
        self._version = (0, 0)

    def record(self, name: str) -> StationRecord | None:
        """The station as it was last seen; None when the fleet is gone."""
        try:
            found = self._path.stat()
            version = (found.st_ino, found.st_mtime_ns)
            if version != self._version:
                self._records = {station.name: station for station in read_state(self._path).stations}
                self._version = version
        except (OSError, msgspec.DecodeError):
            return None
        return self._records.get(name)


class RecordedStation:
    """One station of a recorded fleet: what the engine asks of a process (`StationProcess`)."""

    def __init__(self, fleet: RecordedFleet, name: str) -> None:
        self.name = name
        self._fleet = fleet

    @property
    def url(self) -> str:
        record = self._fleet.record(self.name)
        return record.url if record is not None else ""

    @property
    def pid(self) -> int:
        record = self._fleet.record(self.name)
        return record.pid if record is not None else 0

    @property
    def exit_status(self) -> int | None:
        record = self._fleet.record(self.name)
        return record.exit_status if record is not None else None

    def log_tail(self, lines: int = 5) -> tuple[str, ...]:
        return last_lines(log_path(self._fleet.directory, self.name), lines)


def recorded_stations(state: FleetState) -> list[RecordedStation | None]:
    """In the order of the state; None for stations that run elsewhere, of which it has only the address."""
    fleet = RecordedFleet(state)
    return [RecordedStation(fleet, station.name) if station.pid else None for station in state.stations]
