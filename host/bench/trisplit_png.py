"""A cell as a picture: the first decoded token over all lanes, and three of its layers close by (extra `plots`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import HostError
from .trisplit_timeline import ROLES, Box, Line, Timeline

# One colour a role, told apart by people who see red and green alike; the pages use the same ones.
COLOURS = ("#6f6f6f", "#eda100", "#2a78d6", "#eb6834", "#1baf7a", "#d55181", "#008300", "#4a3aa7")
CLOSE_LAYERS = 3
SIZE_INCHES = (13.0, 6.5)
DPI = 130


class PlotsMissingError(HostError):
    """matplotlib is not installed."""

    code = "plots"


def pyplot() -> Any:
    """matplotlib.pyplot, drawing into files. PlotsMissingError says how to get it."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise PlotsMissingError(f"pictures need matplotlib: {sys.executable} -m pip install matplotlib") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def draw_timeline(timeline: Timeline, title: str, path: Path) -> None:
    """Write a PNG. Raises PlotsMissingError without matplotlib, OSError where the file cannot be written."""
    plt = pyplot()
    first = min((box.position for box in timeline.boxes if box.role), default=0)
    boxes = [box for box in timeline.boxes if box.position == first]
    lines = [line for line in timeline.lines if line.position == first]
    figure, (whole, close) = plt.subplots(2, 1, figsize=SIZE_INCHES, layout="constrained")
    for axes in (whole, close):
        _draw(axes, timeline, boxes, lines)
    end_us = max((line.at_us + line.took_us for line in lines), default=timeline.end_us)
    whole.set_xlim(-0.01 * end_us, 1.01 * end_us)
    whole.set_title(f"{title}: one token", fontsize=10, loc="left")
    lo_us, hi_us, layers = _close_by(boxes, end_us)
    close.set_xlim(lo_us, hi_us)
    close.set_title(layers, fontsize=10, loc="left")
    for axes in (whole, close):
        axes.set_xlabel("time since the token left the host, ms", fontsize=9)
        axes.set_ylabel("process", fontsize=9)
    shown = sorted({box.role for box in boxes} | {line.role for line in lines})
    handles = [plt.Line2D([], [], color=COLOURS[role], lw=4, label=ROLES[role]) for role in shown]
    if any(box.kind for box in boxes) or any(line.kind for line in lines):
        handles.append(plt.Line2D([], [], color="#6f6f6f", lw=1.5, ls="dotted", label="draft (boxes are hollow)"))
    whole.legend(
        handles=handles, ncols=len(handles), fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), frameon=False
    )
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _draw(axes: Any, timeline: Timeline, boxes: Sequence[Box], lines: Sequence[Line]) -> None:
    from matplotlib.collections import LineCollection

    segments = [[(line.at_us, line.lane), (line.at_us + line.took_us, line.to_lane)] for line in lines]
    styles = ["solid" if line.kind == 0 else "dotted" for line in lines]
    colours = [COLOURS[line.role] for line in lines]
    axes.add_collection(LineCollection(segments, colors=colours, linewidths=0.9, alpha=0.75, linestyles=styles))
    for box in boxes:
        span = [(box.at_us, box.took_us)]
        filled = COLOURS[box.role] if box.kind == 0 else "white"
        axes.broken_barh(span, (box.lane - 0.3, 0.6), facecolor=filled, edgecolor=COLOURS[box.role], linewidth=0.8)
    names = [lane.name for lane in timeline.lanes]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(lambda us, _: f"{us / 1000:g}")
    axes.grid(axis="x", alpha=0.25)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _close_by(boxes: Sequence[Box], end_us: float) -> tuple[float, float, str]:
    """Where some layers in the middle lie, and their name; the whole where there are no layers."""
    layers = sorted({box.layer for box in boxes if ROLES[box.role] in ("attn", "block")})
    if len(layers) <= CLOSE_LAYERS:
        return -0.01 * end_us, 1.01 * end_us, "all layers"
    lo = layers[len(layers) // 2 - 1]
    hi = layers[layers.index(lo) + CLOSE_LAYERS - 1]
    own = [box for box in boxes if lo <= box.layer <= hi and ROLES[box.role] not in ("embed", "head", "host")]
    begin_us, finish_us = min(box.at_us for box in own), max(box.at_us + box.took_us for box in own)
    margin_us = 0.1 * (finish_us - begin_us)
    return begin_us - margin_us, finish_us + margin_us, f"layers {lo} to {hi}"
