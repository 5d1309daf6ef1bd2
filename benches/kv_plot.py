"""The picture of what benches/kv_table.py measured: KV bytes and decode rate against context (extra `plots`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

MB = 1e6
DRAWN = {
    "kv=f16": "f16", "kv=q8": "q8", "kv=q4": "q4", "max_rows=25% evict=born": "born 25 %",
    "window=25%": "window 25 %", "o1=m=32,w=128": "O(1) m=32 w=128", "o1=m=64,w=256": "O(1) m=64 w=256",
}  # fmt: skip


def draw(found: dict[str, Any], out: Path) -> None:
    """Two panels, context on a logarithmic axis; ways that were measured at one context only are dots."""
    contexts = sorted(map(int, found["contexts"]))
    lines: dict[str, list[tuple[int, dict[str, Any]]]] = {"f32": []}
    for context in contexts:
        ways = found["contexts"][str(context)]
        if ways:
            lines["f32"].append((context, next(iter(ways.values()))["exact"]))
        for way, label in DRAWN.items():
            if way in ways:
                lines.setdefault(label, []).append((context, ways[way]["option"]))
    figure, (sizes, rates) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for label, points in lines.items():
        at = [context for context, _ in points]
        sizes.plot(at, [side["kv_bytes"] / MB for _, side in points], marker="o", label=label)
        rates.plot(at, [side["decode_tok_s"] for _, side in points], marker="o", label=label)
    for axes, what in ((sizes, "KV, MB a session"), (rates, "decode, tokens a second")):
        axes.set(xlabel="context, tokens", ylabel=what, xscale="log", ylim=(0, None))
        axes.set_xticks(contexts, [f"{context:,}" for context in contexts])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    sizes.legend(fontsize="small")
    figure.suptitle(f"{found['model']}, {found['plan']}, {found['machine']['cpu']}", fontsize=9)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
