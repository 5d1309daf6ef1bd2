"""The largest |k| and |v| a layer has stored so far, scanned lazily: only rows that were not seen yet."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


class AbsMax:
    """Running maxima over rows [0, scanned); +inf once one value is inf or NaN. Dropped rows may over-state it."""

    __slots__ = ("k", "scanned", "v")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.k = 0.0
        self.v = 0.0
        self.scanned = 0

    def rows_changed(self, first: int) -> None:
        """Rows from `first` on may no longer be the ones that were scanned."""
        self.scanned = min(self.scanned, first)

    def front_dropped(self, count: int) -> None:
        """`count` rows left the front: the mark moves with the rows, or those appended next would go unscanned."""
        self.scanned = max(self.scanned - count, 0)

    def fold(self, upto: int, k_max: float, v_max: float) -> tuple[float, float]:
        """Maxima of rows [scanned, upto) join; a scan from row 0 starts afresh."""
        if self.scanned == 0:
            self.k = self.v = 0.0
        self.k, self.v = max(self.k, k_max), max(self.v, v_max)
        self.scanned = upto
        return self.k, self.v


def abs_max(values: F32) -> float:
    """max |x|, 0 for no values, +inf when one is inf or NaN."""
    if not values.size:
        return 0.0
    top = float(np.abs(values).max())
    return top if math.isfinite(top) else math.inf
