"""A picture of what benches/kv_depth.py printed: KV bytes and decode rate against context (extra `plots`)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

MB = 1e6


def label(way: str) -> str:
    """`kv=q8 exact_recent=64` → `q8 exact_recent=64`."""
    return way.removeprefix("kv=")


def rate(at: dict[str, Any]) -> float:
    """Rows a second of processor time where that is known: of an idle machine."""
    return float((at["decode_cpu_tok_s"] or at["decode_tok_s"])["median"])


def draw(found: dict[str, Any], out: Path) -> None:
    """Two panels, depth on a logarithmic axis."""
    figure, (sizes, rates) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for way, column in found["ways"].items():
        sizes.plot(found["depths"], [at["kv_bytes"] / MB for at in column], marker="o", label=label(way))
        rates.plot(found["depths"], [rate(at) for at in column], marker="o", label=label(way))
    for axes, what in ((sizes, "KV, MB a session"), (rates, "decode, tokens a second")):
        axes.set(xlabel="context, tokens", ylabel=what, xscale="log", ylim=(0, None))
        axes.set_xticks(found["depths"], [str(depth) for depth in found["depths"]])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    sizes.legend(fontsize="small")
    figure.suptitle(
        f"{found['model']}, {found['plan']}, {found['threads']} thread, {found['machine']['cpu']}", fontsize=9
    )
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("found", type=Path, help="the JSON object of benches/kv_depth.py")
parser.add_argument("--out", type=Path, default=Path("docs/kv-bytes-and-speed.svg"))

if __name__ == "__main__":
    options = parser.parse_args()
    draw(json.loads(options.found.read_text("utf-8")), options.out)
