"""A station of the plan that already runs somewhere else: known by its address alone, never started or stopped."""

from __future__ import annotations

from host.plan import StationSpec

from .station import PlannedStation, StationState


class ElsewhereStation(PlannedStation):
    """What a fleet's state tells of a `FleetStation`; there is no process here to speak of."""

    pid = 0
    exit_status: int | None = None
    restarts = 0
    state = StationState.READY

    def __init__(self, spec: StationSpec, url: str) -> None:
        super().__init__(spec)
        self.url = url
