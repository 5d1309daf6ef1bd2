"""Slots of residual seeds, one at a time: sums, order, duplicates, conflicts, lateness, limits, expiry."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aeonflow.errors import BadTensorError
from aeonflow.fano import MINUS, PLUS
from aeonflow.tensors import Kind, Port, Tensor
from stations.core.joins import JoinGauge
from stations.core.seeds import CHAIN, Completed, Refusal, SeedSlots, mask, nibble, signed_sum
from tests.station.cores import tensor

SEEDS = int(Kind.DRAFT)
A, X = nibble(3, PLUS), nibble(5, PLUS)
BOTH = mask(A, X)


def head(first: int = 4, rows: int = 1, **fields: Any) -> Tensor:
    return tensor(Port.SEED, np.zeros((rows, 2), np.float32), first=first, **fields)


def row(*values: float) -> Any:
    return np.array([values], np.float32)


def add(
    slots: SeedSlots, bit: int, array: Any, *, expected: int = BOTH, layer: int = 3, max_slots: int = 8, **fields: Any
) -> Any:
    now = fields.pop("now", 0.0)
    return slots.add(SEEDS, layer, expected, bit, array, head(rows=len(array), **fields), now, max_slots)


def test_a_slot_is_full_when_every_line_it_waits_for_has_come() -> None:
    slots = SeedSlots(JoinGauge())
    assert add(slots, X, row(1, 2)) is Refusal.WAITING
    done = add(slots, A, row(3, 4), hop=7)
    assert isinstance(done, Completed)
    assert done.nibbles == (A, X), "in the order of the lines, whoever came first"
    assert [part.tolist() for part in done.parts] == [[[3, 4]], [[1, 2]]]
    assert done.head.hop == 7, "the longest way here"
    assert not len(slots)


def test_a_contribution_of_minus_orientation_is_subtracted() -> None:
    slots = SeedSlots(JoinGauge())
    expected = mask(nibble(1, PLUS), nibble(3, MINUS))
    add(slots, nibble(3, MINUS), row(10, 20), expected=expected)
    done = add(slots, nibble(1, PLUS), row(1, 2), expected=expected)
    assert signed_sum(done).tolist() == [[-9, -18]]
    slots.clear()
    alone = add(slots, nibble(3, MINUS), row(10, 20), expected=mask(nibble(3, MINUS)))
    assert signed_sum(alone).tolist() == [[-10, -20]]


@settings(deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5),
    st.randoms(use_true_random=False),
)
def test_the_sum_has_the_same_bits_in_whatever_order_contributions_come(
    values: list[float], rng: random.Random
) -> None:
    bits = [nibble(line, sign) for line, sign in ((0, PLUS), (1, MINUS), (3, PLUS), (4, MINUS), (5, PLUS))]
    parts = dict(zip(bits, values, strict=True))
    sums = []
    for order in (bits, rng.sample(bits, len(bits))):
        slots = SeedSlots(JoinGauge())
        found = [add(slots, bit, row(parts[bit]), expected=mask(*bits)) for bit in order]
        assert found[:-1] == [Refusal.WAITING] * 4
        sums.append(signed_sum(found[-1]).tobytes())
    assert sums[0] == sums[1]


def test_the_same_contribution_again_is_a_duplicate_before_and_after_its_slot_is_full() -> None:
    slots = SeedSlots(JoinGauge())
    add(slots, A, row(1, 2))
    assert add(slots, A, row(1, 2)) is Refusal.DUPLICATE
    add(slots, X, row(3, 4))
    assert add(slots, A, row(1, 2)) is Refusal.DUPLICATE
    assert add(slots, X, row(3, 4)) is Refusal.DUPLICATE


def test_another_contribution_under_the_same_key_is_a_conflict_before_and_after_its_slot_is_full() -> None:
    slots = SeedSlots(JoinGauge())
    add(slots, A, row(1, 2))
    assert add(slots, A, row(1, 2.5)) is Refusal.CONFLICT
    add(slots, X, row(3, 4))
    assert add(slots, X, row(3, 4.5)) is Refusal.CONFLICT


def test_minus_zero_and_zero_are_two_contributions() -> None:
    slots = SeedSlots(JoinGauge())
    add(slots, A, row(0.0, 1.0))
    assert add(slots, A, row(-0.0, 1.0)) is Refusal.CONFLICT


def test_what_lies_behind_the_newest_full_slot_is_late() -> None:
    slots = SeedSlots(JoinGauge())
    add(slots, A, row(1, 2), first=9)
    add(slots, X, row(1, 2), first=9)
    assert add(slots, A, row(1, 2), first=8) is Refusal.LATE
    assert add(slots, A, row(1, 2), first=8, layer=4) is Refusal.WAITING, "each layer for itself"


def test_the_other_orientation_of_a_line_is_a_wrong_sign_and_another_line_is_unexpected() -> None:
    slots = SeedSlots(JoinGauge())
    assert add(slots, A ^ 1, row(1, 2)) is Refusal.WRONG_SIGN
    assert add(slots, nibble(1, PLUS), row(1, 2)) is Refusal.UNEXPECTED
    assert add(slots, CHAIN, row(1, 2)) is Refusal.UNEXPECTED
    assert not len(slots)


def test_a_table_that_is_full_takes_no_new_slot_but_fills_those_it_has() -> None:
    slots = SeedSlots(JoinGauge())
    for first in (1, 2):
        add(slots, A, row(1, 2), first=first, max_slots=2)
    assert add(slots, A, row(1, 2), first=3, max_slots=2) is Refusal.OVER_LIMIT
    assert isinstance(add(slots, X, row(1, 2), first=1, max_slots=2), Completed)


def test_contributions_of_one_pass_have_the_same_rows() -> None:
    slots = SeedSlots(JoinGauge())
    add(slots, A, row(1, 2))
    with pytest.raises(BadTensorError, match="have 1 and 2 rows"):
        add(slots, X, np.zeros((2, 2), np.float32))


def test_slots_that_wait_too_long_are_forgotten_with_their_bytes() -> None:
    gauge = JoinGauge()
    slots = SeedSlots(gauge)
    add(slots, A, row(1, 2), first=1, now=10.0)
    add(slots, A, row(1, 2), first=2, now=20.0)
    assert gauge.num_bytes == 16
    assert slots.expire(15.0) == 1
    assert gauge.num_bytes == 8
    assert slots.expire(15.0) == 0
    assert slots.clear() == 1
    assert gauge.num_bytes == 0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([A, X, A ^ 1, nibble(1, PLUS), CHAIN]), st.integers(0, 5), st.integers(2, 3),
        st.sampled_from([1.0, 2.0]), st.integers(1, 2), st.booleans(),
    ),
    max_size=60,
)  # fmt: skip


@settings(deadline=None)
@given(EVENTS)
def test_whatever_comes_the_table_is_bounded_its_bytes_are_counted_and_no_slot_is_full_twice(events: list[Any]) -> None:
    gauge = JoinGauge()
    slots = SeedSlots(gauge)
    full: set[tuple[int, int]] = set()
    for bit, first, layer, value, rows, is_reset in events:
        try:
            done = add(slots, bit, np.full((rows, 2), value, np.float32), first=first, layer=layer, max_slots=3)
        except BadTensorError:
            continue
        if isinstance(done, Completed):
            assert (layer, first) not in full
            assert all((layer, later) not in full for later in range(first, 6)), "in the order of positions"
            assert {part.shape for part in done.parts} == {(done.head.rows, 2)}
            full.add((layer, first))
        assert len(slots) <= 3
        assert (gauge.num_bytes > 0) == (len(slots) > 0)
        if is_reset and value == 2.0:
            slots.clear()
            full.clear()
            assert gauge.num_bytes == 0
