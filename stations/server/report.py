"""What a station process says on stdout: one JSON line when it is ready, or why it is not. Errors also on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any


def announce(event: str, **fields: Any) -> None:
    """Write one event line. A launcher that is gone is no reason to fail: stdin tells that."""
    try:
        print(json.dumps({"event": event, **fields}), flush=True)
    except (BrokenPipeError, ValueError):
        pass


def fail(message: str, code: int, error_code: str = "") -> int:
    """Say in one line why the station cannot serve; returns `code`, the exit status."""
    line = " ".join(message.split())
    announce("error", message=line, code=error_code or "usage")
    try:
        print(f"station: {line}", file=sys.stderr, flush=True)
    except (BrokenPipeError, ValueError):
        pass
    return code
