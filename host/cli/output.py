"""Where words go: answers to stdout, everything about them to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(value: Any) -> None:
    """One JSON value on stdout, on one line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def note(text: str) -> None:
    """One line of progress or summary on stderr."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    note(f"warning: {text}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout: fitted to a terminal, whole rows of aligned text elsewhere, so that tools can read it."""
    body = [tuple(row) for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, cells)) for cells in zip(columns, *body, strict=True)]
        for row in (columns, *body):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False)
    for row in body:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)
