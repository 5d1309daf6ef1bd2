"""Means over tokens with standard errors that allow for tokens that follow each other being alike.

Rows of one run of text are cut into blocks of consecutive tokens; blocks are taken as independent (clusters). With
block sums s_b over n_b tokens, B blocks, N tokens and mean m: se² = B / (B - 1) · Σ (s_b - n_b m)² / N².
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


class Estimate(msgspec.Struct, frozen=True):
    """A figure and its standard error; None where there are too few tokens for one."""

    value: float
    se: float | None

    def times(self, factor: float) -> Estimate:
        return Estimate(factor * self.value, None if self.se is None else factor * self.se)

    def exp(self) -> Estimate:
        """e to the figure; the error to first order."""
        value = math.exp(self.value)
        return Estimate(value, None if self.se is None else value * self.se)

    def minus(self, constant: float) -> Estimate:
        return Estimate(self.value - constant, self.se)


def mean(runs: Iterable[F64], block: int) -> Estimate | None:
    """The mean over all values of `runs`, each f64 [consecutive tokens]; None of no values."""
    parts = [run[at : at + block] for run in runs for at in range(0, len(run), block)]
    return mean_of_blocks([float(part.sum()) for part in parts], [len(part) for part in parts])


def mean_of_blocks(sums: Sequence[float], counts: Sequence[int]) -> Estimate | None:
    """The mean over all values, of which each block has `counts` that sum up to `sums`; None of no values."""
    total = sum(counts)
    if not total:
        return None
    value = math.fsum(sums) / total
    num_blocks = len(sums)
    if num_blocks < 2:
        return Estimate(value, None)
    residuals = np.array(sums) - np.array(counts) * value
    return Estimate(value, math.sqrt(num_blocks / (num_blocks - 1) * float(residuals @ residuals)) / total)
