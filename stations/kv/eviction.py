"""Which rows leave a cache that is full: the newest stay, or those that attention has read most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import KvShapeError

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recent:
    """Keep the `sink` first rows and the newest. Without the first ones models lose their footing: PPL × 1.7 to 2.6 on
    SmolLM2."""

    sink: int = 0

    def kept(self, importance: F32, keep: int) -> I64:
        """Rows to keep of len(importance), ascending."""
        rows = len(importance)
        sinks = min(self.sink, keep, rows)
        newest = max(rows - (keep - sinks), sinks)
        return np.concatenate([np.arange(sinks), np.arange(newest, rows)])


@dataclass(frozen=True, slots=True)
class Born:
    """Keep the `sink` first rows, then max(keep / 2, 1) newest, then those of the highest importance.

    Ties go to the older row. Published for another model: PPL 8.342 against 8.687 for the newest rows only, 8.295
    for all.
    """

    sink: int = 4

    def kept(self, importance: F32, keep: int) -> I64:
        """Rows to keep of len(importance), ascending."""
        rows = len(importance)
        if rows <= keep:
            return np.arange(rows)
        sinks = min(self.sink, keep)
        recent = min(max(keep // 2, 1), keep - sinks)
        chosen = np.zeros(rows, bool)
        chosen[:sinks] = True
        chosen[rows - recent :] = True
        rest = np.flatnonzero(~chosen)
        by_mass = rest[np.argsort(-importance[rest], kind="stable")]
        chosen[by_mass[: keep - int(chosen.sum())]] = True
        return np.flatnonzero(chosen)


EvictionPolicy = Recent | Born


def policy_named(name: str, sink: int = 4) -> EvictionPolicy:
    """ "recent" or "born", keeping the `sink` first rows."""
    if name == "recent":
        return Recent(sink)
    if name == "born":
        return Born(sink)
    raise KvShapeError(f"eviction policy {name!r} is unknown; known are recent and born")
