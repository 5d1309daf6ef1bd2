"""Fleets: the stations of a plan as processes on this machine.

`Fleet(plan.stations, StationOptions(model=…))` starts, watches, restarts and stops them.
"""

from .errors import FleetError, StationStartError
from .launcher import Fleet
from .spec import StationOptions
from .station import FleetStation, RestartPolicy, StationState

__all__ = [
    "Fleet",
    "FleetError",
    "FleetStation",
    "RestartPolicy",
    "StationOptions",
    "StationStartError",
    "StationState",
]
