"""A station of the plan that already runs somewhere else: known by its address alone, never started or stopped."""

from __future__ import annotations

from host.plan import StationSpec

from .station import StationState


class ElsewhereStation:
    """The same reading side as `FleetStation`; there is no process here to speak of."""

    pid = 0
    exit_status: int | None = None
    restarts = 0
    state = StationState.READY

    def __init__(self, spec: StationSpec, url: str) -> None:
        self.spec = spec
        self.url = url

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(str(role) for role in self.spec.roles)

    def log_tail(self, lines: int = 5) -> tuple[str, ...]:
        return ()
