"""`aeonflow station …`: become a station. The arguments are those of `python -m stations station`."""

from __future__ import annotations

import os
import sys

import typer

from .children import station_command


def station(context: typer.Context) -> None:
    """Run one station here, for a fleet over several machines (aeonflow station --help lists its options).

    Its stdout is for launchers: one JSON line, `ready` or `error`. What people read is on stderr.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    command = station_command("station", context.args)
    os.execv(command[0], command)
