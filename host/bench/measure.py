"""What every measurement shares: medians with their spread, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..fleet.launcher import usable_cores


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Median, 10 % and 90 % quantiles (nearest rank) of at least one value, and how many there were."""
    ordered = sorted(values)

    def at(quantile: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(quantile * len(ordered)))], digits)

    return {"median": at(0.5), "p10": at(0.1), "p90": at(0.9), "count": len(ordered)}


def machine() -> dict[str, Any]:
    """Where a measurement was taken: processor, usable cores, load of the last minute, versions."""
    return {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def peak_rss_bytes() -> int:
    """The most memory this process ever had resident, shared pages included; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
