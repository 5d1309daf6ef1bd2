"""Inputs that arrive apart: h and u at split-c, x of several embed shards at layer 0, h and the sums of ffn slices.

One table a session.

A join completes when every slot is filled. Joins of a (stage, kind) complete in order of their first position, so a
part at or below the last completed one is a duplicate (without that rule duplicates leave half joins behind).
A second part with the same bytes is ignored; with other bytes the session is poisoned: one of the two is wrong.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from aeonflow.errors import BadTensorError, PoisonedError
from aeonflow.tensors import Tensor

from .stages import StageKey

Array = npt.NDArray[Any]


class Part(Enum):
    """Why a part completed nothing."""

    WAITING = "waiting"
    DUPLICATE = "duplicate"


class _Join:
    __slots__ = ("filled", "head", "parts")

    def __init__(self, slots: int, head: Tensor) -> None:
        self.parts: list[Array | None] = [None] * slots
        self.filled = 0
        self.head = head


class JoinGauge:
    """Bytes that wait in the joins of all sessions of a station."""

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0


class Joins:
    """The joins of one session; `gauge` counts their bytes with those of the others."""

    __slots__ = ("_completed", "_gauge", "_num_bytes", "_open")

    def __init__(self, gauge: JoinGauge) -> None:
        self._open: dict[tuple[StageKey, int, int], _Join] = {}
        self._completed: dict[tuple[StageKey, int], int] = {}
        self._gauge = gauge
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(
        self, key: StageKey, slots: int, slot: int, array: Array, head: Tensor
    ) -> tuple[Tensor, list[Array]] | Part:
        """Take a part; the head (of the longest way here) and all parts in slot order once they are complete.

        BadTensorError when parts of one pass have different rows, PoisonedError when one arrives twice and differs.
        """
        kind, first = head.kind, head.first
        if first <= self._completed.get((key, kind), -1):
            return Part.DUPLICATE
        at = (key, kind, first)
        join = self._open.get(at)
        if join is None:
            join = self._open[at] = _Join(slots, head)
        elif join.head.rows != head.rows:
            raise BadTensorError(f"parts of the pass at {first} have {join.head.rows} and {head.rows} rows")
        held = join.parts[slot]
        if held is not None:
            if held.tobytes() == array.tobytes():
                return Part.DUPLICATE
            raise PoisonedError(f"part {slot} of the pass at {first} arrived twice with different bytes")
        join.parts[slot] = array
        join.filled += 1
        self._count(array.nbytes)
        if head.hop > join.head.hop:  # a join's hop is the longest way here
            join.head = head
        if join.filled < slots:
            return Part.WAITING
        del self._open[at]
        self._completed[key, kind] = first
        num_bytes = 0
        parts: list[Array] = []
        for part in join.parts:
            assert part is not None
            num_bytes += part.nbytes
            parts.append(part)
        self._count(-num_bytes)
        return join.head, parts

    def is_open(self, key: StageKey, head: Tensor) -> bool:
        """Does the pass of `head` wait here for more of its parts?"""
        return (key, head.kind, head.first) in self._open

    def is_fresh(self, key: StageKey, kind: int, first: int) -> bool:
        """Has no part of this pass come yet?"""
        return first > self._completed.get((key, kind), -1) and (key, kind, first) not in self._open

    def skip(self, key: StageKey, kind: int, first: int) -> None:
        """A pass whose parts met elsewhere: what comes of it from now on is a duplicate."""
        self._completed[key, kind] = first

    def clear(self) -> None:
        """A new epoch: nothing of the old one completes any more."""
        self._open.clear()
        self._completed.clear()
        self._count(-self._num_bytes)

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._gauge.num_bytes += num_bytes


def add_slices(parts: list[Array]) -> npt.NDArray[np.float32]:
    """x = h + the fixed tree over the sums of 2, 4 or 8 ffn slices (`docs/numerics.md`); `parts` are h and the sums.

    The bits are those of an uncut `down`: each slice's sum is a branch of its tree.
    """
    h, *sums = parts
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is found where the row is checked, as in `down`
        while len(sums) > 1:
            sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
        return np.add(h, sums[0], dtype=np.float32)


def sum_parts(parts: list[Array]) -> npt.NDArray[np.float32]:
    """x of several embed shards: their sum in part order. Exact, as all but one are +0.0 in every row."""
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total
