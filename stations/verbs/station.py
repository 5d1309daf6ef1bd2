"""`python -m stations station --roles … --model M --listen HOST:PORT`: one station process.

One JSON line on stdout when it serves: `{"event": "ready", "name", "url", "port", "pid", "roles", …}`, or
`{"event": "error", "message"}` and an exit status above 0. It leaves on SIGTERM after a bounded drain, and with
`--exit-with-parent` when its stdin ends, so that a launcher that was killed leaves no orphan.
"""

from __future__ import annotations

import os

from ..server.machine import pin_threads
from ..server.options import parse_arguments
from ..server.report import fail


def main(argv: list[str]) -> int:
    """Run a station until it is told to leave; returns the exit code."""
    try:
        options = parse_arguments(argv, os.environ)
    except ValueError as error:
        return fail(str(error), 2)
    pin_threads(os.environ, options.threads)
    from ..server.process import run  # only now: this imports numpy

    return run(options, os.environ)
