"""The grid as a picture: seconds a token, and the speed-up over the relay, against the delay (extra `plots`)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from .trisplit_png import pyplot

SIZE_INCHES = (13.0, 5.6)
DPI = 130
SMALLEST_DELAY_MS = 0.05  # where a delay of 0 is drawn: the axis is logarithmic


def draw_grid(report: dict[str, Any], path: Path) -> None:
    """Write a PNG of `grid_report`'s object; hollow marks are what the formula gives. Errors as of `draw_timeline`."""
    plt = pyplot()
    ways: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in report["cells"]:
        ways[cell["way"]].append(cell)
    delays = sorted({cell["link_delay_ms"] for cell in report["cells"]})
    figure, (times, gains) = plt.subplots(1, 2, figsize=SIZE_INCHES, layout="constrained")
    for number, (way, cells) in enumerate(ways.items()):
        at = [max(SMALLEST_DELAY_MS, cell["link_delay_ms"]) for cell in cells]
        look = {"color": f"C{number % 10}", "label": way}
        times.plot(at, [cell["token_s"] for cell in cells], marker="o", ms=4, **look)
        predicted = [cell["formula"]["token_s"] for cell in cells]
        times.plot(at, predicted, marker="o", ms=8, ls="none", mfc="none", mec=look["color"], alpha=0.6)
        gain = [(x, cell["speedup_over_relay"]) for x, cell in zip(at, cells, strict=True)]
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
    handles, labels = times.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(f"{report['model']}, {report['machine']['cpu']}, {report['machine']['cores']} cores", fontsize=10)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
