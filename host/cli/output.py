"""Where words go: answers to stdout, everything about them to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(value: Any) -> None:
    """One JSON object (or array) on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=None), flush=True)


def note(text: str) -> None:
    """One line of progress or summary on stderr."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    note(f"warning: {text}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """A table on stdout; columns as wide as their content when stdout is no terminal, so that tools can read it."""
    from rich.console import Console
    from rich.table import Table

    body = [tuple(row) for row in rows]
    is_terminal = sys.stdout.isatty()
    table = Table(*columns, title=title or None, title_justify="left", box=None, pad_edge=False)
    for row in body:
        table.add_row(*row)
    console = Console(width=None if is_terminal else _width(columns, body), highlight=False)
    console.print(table)


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    widths = [max([len(name), *(len(row[i]) for row in rows)]) for i, name in enumerate(columns)]
    return sum(widths) + 2 * len(widths) + 2
