"""Cells as one self-contained HTML page: timeline to zoom into, tables, and for a grid its overview. No network, no
library; light and dark as the reader's system has it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from .trisplit_timeline import ROLES, Timeline

TEMPLATE = "trisplit_page.html"
_LEFT_OUT = ("token_ids", "machine")  # of a report: long, and of no use to the page


class PageCell(NamedTuple):
    """One cell on the page: its JSON object, and what of its trace is drawn."""

    report: dict[str, Any]
    timeline: Timeline


def write_page(cells: Sequence[PageCell], title: str, about: str, path: Path) -> None:
    """Write the page. Raises OSError where it cannot be written."""
    shown = [
        {
            "report": {name: value for name, value in cell.report.items() if name not in _LEFT_OUT},
            "timeline": cell.timeline.to_json(),
        }
        for cell in cells
    ]
    data = json.dumps({"title": title, "about": about, "roles": ROLES, "cells": shown}, separators=(",", ":"))
    template = resources.files(__package__).joinpath(TEMPLATE).read_text("utf-8")
    # A text may hold `</script>`; JSON may spell `<` as it likes.
    page = template.replace("__TITLE__", html.escape(title)).replace("__DATA__", data.replace("<", "\\u003c"))
    path.write_text(page, "utf-8")


def about_cell(report: dict[str, Any]) -> str:
    """One line under the title: model, prompt, machine, when links are delayed how."""
    machine = report["machine"]
    delay = f"{report['link_delay_ms']:g} ms a link" + (" by netem" if report["netns"] else "")
    return (
        f"{report['model']} · prompt {report['prompts']}/{report['prompt']} · {report['tokens']} tokens · {delay} · "
        f"{report['kernels']} kernels, {report['transport']} · {machine['cores']} cores of {machine['cpu']}"
    )
