"""Rows of texts in blocks: what is summed up is told block by block, so that its error can be estimated.

Rows that follow each other are alike; blocks of them are what may be taken as independent. A block is as long as the
gate of residual seeds looks (20 rounds), so that a block's largest difference is what such a gate would see.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .scores import F64

BLOCK_ROWS = 20


def block_rows(lengths: Sequence[int]) -> list[int]:
    """Rows of each block of texts of these many rows; no block goes over the end of a text."""
    return [min(BLOCK_ROWS, length - at) for length in lengths for at in range(0, length, BLOCK_ROWS)]


def block_sums(runs: Sequence[F64]) -> list[float]:
    """The sum of each block; runs are values of the rows of one text each."""
    return [float(run[at : at + BLOCK_ROWS].sum()) for run in runs for at in range(0, len(run), BLOCK_ROWS)]


def block_maxima(runs: Sequence[F64]) -> list[float]:
    """The largest of each block."""
    return [float(np.max(run[at : at + BLOCK_ROWS])) for run in runs for at in range(0, len(run), BLOCK_ROWS)]
