"""What `bench trisplit --out DIR` leaves behind: the JSON object, the pictures, the page, the trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..trace import write_chrome_trace
from .grid import Outcome
from .grid_plot import draw_grid
from .trisplit import Measured
from .trisplit_page import PageCell, about_cell, write_page
from .trisplit_png import PlotsMissingError, draw_timeline
from .trisplit_timeline import timeline_of

POSITIONS_OF_A_CELL = 64  # drawn on the page of one cell
POSITIONS_OF_A_GRID = 6  # of each cell on the page of a grid, which holds dozens


def write_cell(measured: Measured, folder: Path) -> tuple[list[Path], str]:
    """cell.json, timeline.html, timeline.png, trace.json. Returns what was written, and why there is no picture.

    Raises OSError where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = measured.report
    timeline = timeline_of(measured.recording, measured.prompt_tokens, POSITIONS_OF_A_CELL)
    written = [folder / name for name in ("cell.json", "timeline.html", "trace.json")]
    written[0].write_text(json.dumps(report, ensure_ascii=False) + "\n", "utf-8")
    title = f"{report['way']} at {report['link_delay_ms']:g} ms"
    write_page([PageCell(report, timeline)], title, about_cell(report), written[1])
    write_chrome_trace(measured.recording, written[2], {"model": report["model"], "plan": report["plan"]})
    picture = folder / "timeline.png"
    try:
        draw_timeline(timeline, title, picture)
    except PlotsMissingError as error:
        return written, str(error)
    return [*written, picture], ""


def write_grid(outcomes: Sequence[Outcome], report: dict[str, Any], folder: Path) -> tuple[list[Path], str]:
    """grid.json, grid.html, grid.png, and a picture of every cell's timeline in `timelines/`; as `write_cell`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "grid.json"]
    written[0].write_text(json.dumps(report, ensure_ascii=False) + "\n", "utf-8")
    measured = [outcome.measured for outcome in outcomes if outcome.measured is not None]
    if not measured:
        return written, "no cell was measured"
    cells = [
        PageCell(one.report, timeline_of(one.recording, one.prompt_tokens, POSITIONS_OF_A_GRID)) for one in measured
    ]
    page = folder / "grid.html"
    write_page(cells, "bench trisplit: ways and delays", _about_grid(report), page)
    written.append(page)
    try:
        draw_grid(report, folder / "grid.png")
        written.append(folder / "grid.png")
        pictures = folder / "timelines"
        pictures.mkdir(exist_ok=True)
        for cell in cells:
            name = f"{cell.report['way']} {cell.report['link_delay_ms']:g}ms"
            picture = pictures / f"{''.join(c if c.isalnum() or c == '.' else '-' for c in name)}.png"
            draw_timeline(cell.timeline, name, picture)
            written.append(picture)
    except PlotsMissingError as error:
        return written, str(error)
    return written, ""


def _about_grid(report: dict[str, Any]) -> str:
    machine = report["machine"]
    tokens = "equal tokens for equal prompts" if report["tokens_agree"] else "TOKENS DIFFER"
    return f"{report['model']} · {len(report['cells'])} cells · {tokens} · {machine['cores']} cores of {machine['cpu']}"
