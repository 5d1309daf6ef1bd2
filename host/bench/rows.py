"""What stations have computed, as their own counters say."""

from __future__ import annotations

from typing import NamedTuple

from ..engine import Engine


class Computed(NamedTuple):
    """Rows that went through the embedding so far, and seconds that all stations computed."""

    rows: int
    seconds: float


async def computed(engine: Engine) -> Computed:
    """As it is now; of rows that several stations embed each counts."""
    stats = [station["stats"] for station in (await engine.status())["stations"]]
    rows = sum(values["rows"].get("embed", 0) for values in stats)
    return Computed(rows, sum(sum(values["compute_s"].values()) for values in stats))
