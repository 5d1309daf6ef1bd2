"""Station verbs run as children: `python -m stations VERB …`, JSON lines on stdout, the log on stderr.

The host never imports station code; this is how its commands reach it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

import msgspec

from .failure import CommandFailedError, UsageError

MAX_LOG_LINE_CHARS = 300
BAD_INPUT = ("usage", "model_not_found", "model_name", "unsupported")  # codes of what the user gave


def station_command(verb: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a verb; `-P` keeps the working directory out of the module search."""
    return [sys.executable, "-P", "-m", "stations", verb, *arguments]


def run_verb(
    verb: str,
    arguments: Sequence[str],
    *,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    given: bytes | None = None,
) -> dict[str, Any]:
    """Run a verb to its end, with `given` on its stdin; returns its `result` event.

    Errors: UsageError with the child's words on what was given; CommandFailedError with its other error event, or its
    exit status and last log line.
    Ctrl-C ends the child too: it shares the terminal.
    """
    result: dict[str, Any] | None = None
    error = code = ""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            station_command(verb, arguments),
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        with child:
            assert child.stdout is not None
            try:
                if child.stdin is not None:
                    _feed(child.stdin, given or b"")
                for line in child.stdout:
                    event = _decoded(line)
                    kind = event.get("event")
                    if kind == "progress" and on_progress is not None:
                        on_progress(event)
                    elif kind == "result":
                        result = event
                    elif kind == "error":
                        error, code = str(event.get("message", "")), str(event.get("code", ""))
            except BaseException:
                child.terminate()
                raise
        if result is not None and child.returncode == 0:
            return result
        if code in BAD_INPUT:
            raise UsageError(error)
        if error:
            raise CommandFailedError(error, code=code or "failed")
        raise CommandFailedError(f"{verb}: {_ending(child.returncode)}{_last_line(log)}")


def _feed(stdin: IO[bytes], given: bytes) -> None:
    """All of it, unless the child ends before: then its own words say why."""
    with contextlib.suppress(BrokenPipeError), stdin:
        stdin.write(given)


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        event = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def _ending(status: int) -> str:
    from host.fleet.errors import describe_exit

    return f"the child gave no result ({describe_exit(status)})"


def _last_line(log: Any) -> str:
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return f"; last log line: {lines[-1].strip()[:MAX_LOG_LINE_CHARS]}" if lines else ""
