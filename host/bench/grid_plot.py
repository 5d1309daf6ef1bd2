"""The grid as a picture (extra `plots`): seconds a token and the speed-up over the relay, against the delay; bars where
there is one delay only."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from .trisplit_png import pyplot

SIZE_INCHES = (13.0, 5.6)
DPI = 130
SMALLEST_DELAY_MS = 0.05  # where a delay of 0 is drawn: the axis is logarithmic
LABEL_SHARE = 0.14  # of an axis, beyond the longest bar, for what is written at its end


def draw_grid(report: dict[str, Any], path: Path) -> None:
    """Write a PNG of `grid_report`'s object; hollow marks are what the formula gives. Errors as of `draw_timeline`."""
    plt = pyplot()
    figure, (times, gains) = plt.subplots(1, 2, figsize=SIZE_INCHES, layout="constrained")
    delays = sorted({cell["link_delay_ms"] for cell in report["cells"]})
    of_delay = ""
    if len(delays) == 1:
        _draw_bars(report["cells"], times, gains)
        of_delay = f"{delays[0]:g} ms a link, one way · "
    else:
        _draw_lines(report["cells"], delays, times, gains)
        handles, labels = times.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    machine = report["machine"]
    figure.suptitle(f"{of_delay}{report['model']}, {machine['cpu']}, {machine['cores']} cores", fontsize=10)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _draw_bars(cells: list[dict[str, Any]], times: Any, gains: Any) -> None:
    """One bar a way, in the order of the table."""
    rows = range(len(cells))
    seconds = [cell["token_s"] for cell in cells]
    times.barh(rows, seconds, color="C0", height=0.6)
    times.plot([cell["formula"]["token_s"] for cell in cells], rows, marker="o", ms=8, ls="none", mfc="none", mec="k")
    _write(times, seconds, [_time(value) for value in seconds])
    times.set(xlabel="seconds a token (hollow: formula)", yticks=rows, yticklabels=[cell["way"] for cell in cells])
    speedups = [cell["speedup_over_relay"] or 0.0 for cell in cells]
    gains.barh(rows, speedups, color="C2", height=0.6)
    _write(gains, speedups, [f"× {value:.2f}" if value else "" for value in speedups])
    gains.set(xlabel="times the relay's rate", yticks=rows, yticklabels=[])
    for axes in (times, gains):
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.3)


def _write(axes: Any, lengths: list[float], labels: list[str]) -> None:
    longest = max(lengths, default=0.0) or 1.0
    axes.set_xlim(0, longest * (1 + LABEL_SHARE))
    for row, (length, label) in enumerate(zip(lengths, labels, strict=True)):
        axes.text(length + longest * LABEL_SHARE / 6, row, label, va="center", fontsize=9)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _draw_lines(cells: list[dict[str, Any]], delays: list[float], times: Any, gains: Any) -> None:
    """One line a way, over the delays."""
    ways: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        ways[cell["way"]].append(cell)
    for number, (way, ones) in enumerate(ways.items()):
        at = [max(SMALLEST_DELAY_MS, cell["link_delay_ms"]) for cell in ones]
        look = {"color": f"C{number % 10}", "label": way}
        times.plot(at, [cell["token_s"] for cell in ones], marker="o", ms=4, **look)
        predicted = [cell["formula"]["token_s"] for cell in ones]
        times.plot(at, predicted, marker="o", ms=8, ls="none", mfc="none", mec=look["color"], alpha=0.6)
        gain = [(x, cell["speedup_over_relay"]) for x, cell in zip(at, ones, strict=True)]
        gain = [(x, value) for x, value in gain if value is not None]
        if gain:
            gains.plot(*zip(*gain, strict=True), marker="o", ms=4, **look)
    times.set(yscale="log", ylabel="seconds a token (hollow: formula)")
    gains.set(ylabel="times the relay's rate", ylim=(0, None))
    for axes in (times, gains):
        axes.set(xscale="log", xlabel="delay of a link, one way, ms")
        axes.set_xticks([max(SMALLEST_DELAY_MS, delay) for delay in delays], [f"{delay:g}" for delay in delays])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
