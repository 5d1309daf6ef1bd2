"""Errors of fleets: a station that does not start, a fleet that is not there.

Messages are one line and name the
station, its exit status and its last log lines; the whole tail is an attribute.
"""

from __future__ import annotations

import signal

from host.errors import HostError

SHOWN_LOG_LINES = 3  # of a station's log in an error message: enough for the cause, short enough for one line
SHOWN_LINE_CHARS = 300


class FleetError(HostError):
    """A fleet cannot be started, found or stopped."""

    code = "fleet"


class UnknownFleetError(FleetError):
    """No fleet was started here under this name, or it is no name of one."""

    code = "unknown_fleet"


class StationStartError(FleetError):
    """A station did not become ready: it exited, said why it cannot start, or reached its deadline."""

    code = "station_start"

    def __init__(
        self, message: str, *, station: str = "", exit_status: int | None = None, log_tail: tuple[str, ...] = ()
    ):
        super().__init__(message)
        self.station = station
        self.exit_status = exit_status
        self.log_tail = log_tail


def describe_exit(status: int) -> str:
    """`exit status 3`, `killed by SIGKILL`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def describe_log(tail: tuple[str, ...] | list[str]) -> str:
    """The last log lines on one line, each cut to a readable length; empty when there are none."""
    lines = [line.strip()[:SHOWN_LINE_CHARS] for line in tail if line.strip()][-SHOWN_LOG_LINES:]
    return f"; last log lines: {' | '.join(lines)}" if lines else ""
