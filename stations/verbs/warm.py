"""`python -m stations warm [MODEL]`: fill the compile cache of the fast kernels, for a model or for every type."""

from __future__ import annotations

import os
import time
from typing import Any

from .events import EventParser, ProgressLines, run_verb


def main(argv: list[str]) -> int:
    """Compile what is missing; the result says how many kernels there are and how long it took."""
    parser = EventParser(prog="warm", description=__doc__)
    parser.add_argument("model", nargs="?", help="a model in the cache or a folder; every weight type by default")
    arguments = parser.parse_args(argv)
    return run_verb(lambda: _warm(arguments.model))


def _warm(model: str | None) -> dict[str, Any]:
    from ..kernels.fast.units import ALL_UNITS
    from ..kernels.warm import compile_units, model_units
    from ..models.store import ModelStore

    started = time.monotonic()
    names = ALL_UNITS if model is None else model_units(ModelStore.default(os.environ).open(model))
    compile_units(names, ProgressLines())
    return {"kernels": len(names), "seconds": round(time.monotonic() - started, 3)}
