"""Shadow seeds: what a residual seed would have been worth, held against the x that the chain delivers. Never used."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aeonflow.tensors import Kind, Tensor

from .counters import Counters
from .limits import StationLimits
from .seeds import CHAIN, Completed, Refusal
from .session import Session
from .stages import Stage

Array = npt.NDArray[Any]
_SHADOW = int(Kind.SHADOW)


class Shadows:
    """Compares, and keeps the figures of every layer in the counters."""

    def __init__(self, limits: StationLimits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters

    def chain_delivered(self, session: Session, stage: Stage, expected: int, head: Tensor, x: Array) -> None:
        """x of a canonical pass has come to a layer that takes shadow seeds: hold it against the seed, or keep it until
        the seed comes. Of the relay, whose seeds come first on the same link, nothing is kept."""
        slots = session.seeds
        if stage.edges is None and not slots.is_open(_SHADOW, stage.layer, expected, head.first):
            return
        done = slots.add(
            _SHADOW, stage.layer, expected, CHAIN, x, head, session.last_used_s, self._limits.max_seed_slots
        )
        if isinstance(done, Completed):
            self.compare(stage.layer, done)
        elif done is Refusal.OVER_LIMIT:
            self._counters.events["seeds_over_limit"] += 1

    def compare(self, layer: int, done: Completed) -> None:
        """A seed and what the chain delivered, both f32 [rows, H]: equal by fingerprint, or how far they differ."""
        self._counters.events["seeds_completed"] += 1
        figures = self._counters.shadow_of(layer)
        figures.count += 1
        if done.is_equal:
            figures.equal += 1
            return
        seed, x = done.parts
        max_abs, relative = difference(seed, x)
        figures.max_abs = max(figures.max_abs, max_abs)
        figures.relative_sum += relative


def difference(seed: Array, x: Array) -> tuple[float, float]:
    """max |seed − x|, and that over max |x|; infinity where either is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        max_abs = float(np.abs(np.subtract(seed, x, dtype=np.float32)).max())
        largest = float(np.abs(x).max())
    if not np.isfinite(max_abs) or not np.isfinite(largest):
        return float("inf"), float("inf")
    return max_abs, max_abs / largest if largest else float("inf")
