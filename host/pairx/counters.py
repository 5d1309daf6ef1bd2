"""Residual seeds as `status` shows them: what was sent against what came, by line, and what became of it.

Seeds are not acknowledged; both ends count. A line on which fewer came than were sent has lost some: the canonical
chain went on without them, and that is said aloud.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aeonflow.fano import LINES

from .seeding import Seeding

OUTCOMES = (
    "completed", "dropped", "duplicate", "conflict", "late", "unknown", "corrupt", "wrong_sign", "over_limit",
    "expired",
)  # fmt: skip


def seeds_status(
    seeding: Seeding,
    closed: dict[str, Any],
    relayed: Sequence[int],
    stale: Sequence[int],
    stats: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Mode, layers, lines {sent, received, missing}, outcomes summed over the stations, shadow figures by layer.

    `closed`: whether this engine's lines are (`SeedLines.to_json`). By line, `relayed`: seeds that the host itself has
    sent; `stale`: that ended there on their way from station to station. `stats`: what stations said after the former
    was read.
    """
    lines: dict[str, dict[str, int]] = {}
    for line, sent, ended in zip(LINES, relayed, stale, strict=True):
        if sent or ended:
            lines["".join(map(str, line.points))] = {"sent": sent, "received": ended}
    shadow: dict[str, dict[str, Any]] = {}
    for values in stats:
        for name, counted in values.get("seed_lines", {}).items():
            line_counts = lines.setdefault(name, {"sent": 0, "received": 0})
            for key in line_counts:
                line_counts[key] += int(counted.get(key, 0))
        shadow.update(values.get("shadow", {}))
    found = {name: sum(int(values.get(f"seeds_{name}", 0)) for values in stats) for name in OUTCOMES}
    missing = {name: max(0, counts["sent"] - counts["received"]) for name, counts in lines.items()}
    return {
        "mode": seeding.mode,
        "layers": list(seeding.layers),
        "lines": {name: {**counts, "missing": missing[name]} for name, counts in sorted(lines.items())},
        **found,
        "slots": sum(int(values.get("seed_slots", 0)) for values in stats),
        **closed,
        "problem": _problem(missing, found, closed),
        "shadow": {layer: shadow[layer] for layer in sorted(shadow, key=int)},
    }


def _problem(missing: dict[str, int], found: dict[str, int], closed: dict[str, Any]) -> str:
    """What is wrong with the seeds, in words; empty when all that were sent came and were used."""
    said = []
    if closed["degraded"]:
        said.append(
            f"the lines are closed and the plain chain does the work, for {closed['reopens_s']:.0f} s more: "
            f"{closed['degraded']}"
        )
    said += [
        f"{count} seeds of line {name} were sent and have not come" for name, count in missing.items() if count > 0
    ]
    if found["dropped"] or found["expired"]:
        said.append(f"{found['dropped']} seeds were dropped, {found['expired']} slots expired")
    return "; ".join(said)
