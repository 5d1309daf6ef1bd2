"""Slots of residual seeds: contributions along Fano lines that meet at a layer (`docs/protocol.md`, *Residual seeds*).

One table a session, so a slot's key is (session, epoch, kind, first position, layer): the session and its epoch are
the table's own, which is emptied when either ends. A slot knows from its mode which contributions it waits for, as a
bitset over the low nibbles of the seed band; they are kept apart until all are there and then taken in the order of
the lines, so the sum does not depend on who came first. Nothing is acknowledged: whoever sends counts, whoever receives
counts, and the host compares.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from aeonflow import bands
from aeonflow.errors import BadTensorError
from aeonflow.fano import MINUS
from aeonflow.tensors import Kind

if TYPE_CHECKING:
    from aeonflow.tensors import Tensor

    from .joins import JoinGauge

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

_DRAFT = int(Kind.DRAFT)
CHAIN = 15  # the bit of what the canonical chain delivers, in slots that hold a seed against it; no stream has it


class Refusal(Enum):
    """Why a contribution completed nothing. All but WAITING are counted and dropped; a CONFLICT is of canonical kinds
    the end of the session's epoch, since one of two different contributions under one key is wrong."""

    WAITING = "waiting"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    LATE = "late"
    UNEXPECTED = "unexpected"
    WRONG_SIGN = "wrong sign"
    OVER_LIMIT = "over limit"


class Completed(NamedTuple):
    """All contributions of a slot, in the order of their nibbles; the head is that of the longest way here."""

    head: Tensor
    nibbles: tuple[int, ...]
    parts: tuple[Array, ...]
    fingerprints: tuple[bytes, ...]

    @property
    def is_equal(self) -> bool:
        """Have all contributions the same bits?"""
        return len(set(self.fingerprints)) == 1


def nibble(line: int, sign: int) -> int:
    """The bit of a contribution: line and orientation, as in the stream id."""
    return bands.seed_stream(line, sign) - bands.SEED_FIRST


def mask(*nibbles: int) -> int:
    """The bitset of contributions."""
    return sum(1 << bit for bit in nibbles)


def signed_sum(completed: Completed) -> F32:
    """Contributions added in the order of their lines, those of minus orientation subtracted."""
    total: F32 | None = None
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is found where the row is checked
        for bit, part in zip(completed.nibbles, completed.parts, strict=True):
            if total is None:
                total = np.negative(part) if bit & MINUS else part
            else:
                total = total - part if bit & MINUS else total + part
    assert total is not None
    return total


class _Slot:
    __slots__ = ("fingerprints", "head", "opened_s", "parts")

    def __init__(self, head: Tensor, now: float) -> None:
        self.head = head
        self.opened_s = now
        self.parts: dict[int, Array] = {}
        self.fingerprints: dict[int, bytes] = {}


_Place = tuple[int, int, int]  # kind, layer, contributions expected: attention and gate_up of a layer are two places
_Key = tuple[_Place, int]  # place, first


class SeedSlots:
    """The slots of one session; `gauge` counts their bytes with what waits in joins."""

    __slots__ = ("_done", "_gauge", "_num_bytes", "_open")

    def __init__(self, gauge: JoinGauge) -> None:
        self._open: dict[_Key, _Slot] = {}
        self._done: dict[_Place, tuple[int, dict[int, bytes]]] = {}  # newest first, its prints
        self._gauge = gauge
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def num_awaited(self) -> int:
        """Slots whose rest should come: half a draft is of no consequence."""
        return sum(kind != _DRAFT for (kind, _, _), _ in self._open)

    def is_open(self, kind: int, layer: int, expected: int, first: int) -> bool:
        """Does a slot wait for more?"""
        return ((kind, layer, expected), first) in self._open

    def add(
        self, kind: int, layer: int, expected: int, bit: int, array: Array, head: Tensor, now: float, max_slots: int
    ) -> Completed | Refusal:
        """Take the contribution `bit`; everything once all of `expected` are there.

        BadTensorError when contributions of one pass have different rows.
        """
        if not expected >> bit & 1:
            return Refusal.WRONG_SIGN if bit != CHAIN and expected >> (bit ^ MINUS) & 1 else Refusal.UNEXPECTED
        first = head.first
        print_ = fingerprint_of(array)
        place = kind, layer, expected
        done = self._done.get(place)
        if done is not None and first <= done[0]:
            if first < done[0]:
                return Refusal.LATE
            return Refusal.DUPLICATE if done[1].get(bit) == print_ else Refusal.CONFLICT
        slot = self._open.get((place, first))
        if slot is None:
            if len(self._open) >= max_slots:
                return Refusal.OVER_LIMIT
            slot = self._open[place, first] = _Slot(head, now)
        elif slot.head.rows != head.rows:
            raise BadTensorError(f"contributions at {first} have {slot.head.rows} and {head.rows} rows")
        held = slot.fingerprints.get(bit)
        if held is not None:
            return Refusal.DUPLICATE if held == print_ else Refusal.CONFLICT
        slot.parts[bit] = array
        slot.fingerprints[bit] = print_
        self._count(array.nbytes)
        if head.hop > slot.head.hop:
            slot.head = head
        if mask(*slot.parts) != expected:
            return Refusal.WAITING
        self._forget((place, first))
        self._done[place] = (first, slot.fingerprints)
        order = tuple(sorted(slot.parts))
        return Completed(
            slot.head, order, tuple(slot.parts[b] for b in order), tuple(slot.fingerprints[b] for b in order)
        )

    def expire(self, opened_before_s: float) -> int:
        """Forget slots that have waited since before then; how many there were."""
        old = [key for key, slot in self._open.items() if slot.opened_s < opened_before_s]
        for key in old:
            self._forget(key)
        return len(old)

    def clear(self) -> int:
        """A new epoch, or the end: nothing of the old one completes any more. How many slots still waited."""
        waiting = len(self._open)
        self._open.clear()
        self._done.clear()
        self._count(-self._num_bytes)
        return waiting

    def _forget(self, key: _Key) -> None:
        slot = self._open.pop(key)
        self._count(-sum(part.nbytes for part in slot.parts.values()))

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._gauge.num_bytes += num_bytes


def fingerprint_of(array: Array) -> bytes:
    """blake3 of the f32 bytes."""
    return blake3(array.data.cast("B") if array.flags.c_contiguous else array.tobytes()).digest()
