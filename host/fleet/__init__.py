"""Fleets: the stations of a plan as processes on this machine.

`Fleet` starts, watches, restarts and stops them; `StationSpec` and `StationOptions` say what to start.
"""

from .errors import FleetError, StationStartError
from .launcher import Fleet
from .spec import StationOptions, StationSpec
from .station import FleetStation, RestartPolicy, StationState

__all__ = [
    "Fleet",
    "FleetError",
    "FleetStation",
    "RestartPolicy",
    "StationOptions",
    "StationSpec",
    "StationStartError",
    "StationState",
]
