"""JSON lines on stdout, by which a verb reports to the command that started it.

`{"event": "progress", "stage": …, "done": n, "total": m, "unit": …}` any number of times, then one
`{"event": "result", …}` or `{"event": "error", "code": …, "message": …}`. The exit code agrees.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from aeonflow.errors import AeonflowError

from ..errors import StationsError

UNITS = {
    "compile": "kernels",
    "seeded passes": "passes",
    "texts": "texts",
}  # of done and total, by stage; bytes elsewhere
PROGRESS_STEPS = 200  # lines a stage at most; more would cost more than they show


def emit(event: str, **fields: Any) -> None:
    """Write one event."""
    print(json.dumps({"event": event, **fields}), flush=True)


class ProgressLines:
    """A progress callback that writes at most PROGRESS_STEPS lines a stage, the last one always."""

    def __init__(self) -> None:
        self._stage, self._step = "", -1

    def __call__(self, stage: str, done: int, total: int) -> None:
        step = done * PROGRESS_STEPS // total if total else 0
        if stage != self._stage or step != self._step:
            emit("progress", stage=stage, done=done, total=total, unit=UNITS.get(stage, "bytes"))
        self._stage, self._step = stage, step


class EventParser(argparse.ArgumentParser):
    """Arguments whose errors are events too."""

    def error(self, message: str) -> NoReturn:
        emit("error", code="usage", message=f"{self.prog}: {message}")
        sys.exit(2)


def run_verb(work: Callable[[], dict[str, Any]]) -> int:
    """Run `work` and write its result or its error, in one line each; returns the exit code.

    SIGTERM unwinds like Ctrl-C does, so that nothing half done stays.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        emit("result", **work())
    except KeyboardInterrupt:
        emit("error", code="cancelled", message="interrupted")
        return 130
    except BrokenPipeError:  # the command that started us is gone, and nobody reads what we would say
        return 1
    except (StationsError, AeonflowError, OSError) as error:
        emit("error", code=getattr(error, "code", "failed"), message=" ".join(str(error).split()))
        return 1
    return 0


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
