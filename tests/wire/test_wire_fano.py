"""The Fano tables: lines in their order, signs, products."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from aeonflow import fano
from aeonflow.bands import seed_stream


def times(*indices: int) -> fano.Product:
    left = fano.unit(indices[0])
    for index in indices[1:]:
        left = fano.product(left, fano.unit(index))
    return left


def test_the_lines_stand_in_the_order_of_their_seed_streams() -> None:
    assert [line.points for line in fano.LINES] == [
        (1, 2, 3), (1, 4, 5), (1, 7, 6), (2, 4, 6), (2, 5, 7), (3, 4, 7), (3, 6, 5),
    ]  # fmt: skip
    assert [line.index for line in fano.LINES] == list(range(7))
    assert [f"{seed_stream(line.index, fano.MINUS):04x}" for line in fano.LINES if line.is_seed] == [
        "af61", "af63", "af67", "af69", "af6b",
    ]  # fmt: skip


def test_every_two_points_share_exactly_one_line_and_every_point_lies_on_three() -> None:
    for a, b in permutations(range(1, 8), 2):
        (line,) = [line for line in fano.LINES if a in line.points and b in line.points]
        assert fano.line_through(a, b) == line
    assert all(sum(p in line.points for line in fano.LINES) == 3 for p in range(1, 8))


@pytest.mark.parametrize("line", fano.LINES)
def test_a_triple_multiplies_in_its_cycle_with_plus_and_against_it_with_minus(line: fano.Line) -> None:
    a, b, c = line.points
    for x, y, z in ((a, b, c), (b, c, a), (c, a, b)):
        assert times(x, y) == fano.Product(fano.PLUS, z)
        assert times(y, x) == fano.Product(fano.MINUS, z)
        assert (fano.orientation(x, y), fano.orientation(y, x)) == (fano.PLUS, fano.MINUS)


def test_grouping_matters_as_the_reference_product_says() -> None:
    e1, e2, e4 = fano.unit(1), fano.unit(2), fano.unit(4)
    assert fano.product(fano.product(e1, e2), e4) == fano.Product(fano.PLUS, 7)
    assert fano.product(e1, fano.product(e2, e4)) == fano.Product(fano.MINUS, 7)


def test_units_square_to_minus_one_and_e0_changes_nothing() -> None:
    for i in range(1, 8):
        assert times(i, i) == fano.Product(fano.MINUS, fano.UNIT)
        assert times(0, i) == times(i, 0) == fano.unit(i)
    assert times(0, 0) == fano.unit(0)


def test_signs_compose_by_exclusive_or() -> None:
    for i, j, s, t in product(range(8), range(8), (0, 1), (0, 1)):
        signed = fano.product(fano.Product(s, i), fano.Product(t, j))
        plain = fano.product(fano.unit(i), fano.unit(j))
        assert signed == fano.Product(s ^ t ^ plain.orientation, plain.index)


def test_products_are_alternative_as_octonions_are() -> None:
    for i, j in product(range(8), repeat=2):
        x, y = fano.unit(i), fano.unit(j)
        assert fano.product(fano.product(x, x), y) == fano.product(x, fano.product(x, y))
        assert fano.product(fano.product(y, x), x) == fano.product(y, fano.product(x, x))


def test_points_have_their_roles() -> None:
    assert [point.index for point in fano.POINTS] == list(range(1, 8))
    assert [point.role for point in fano.POINTS][1:4] == ["attn", "gate_up", "down"]


@pytest.mark.parametrize(("a", "b"), [(1, 1), (0, 1), (1, 8)])
def test_what_are_not_two_points_have_no_line(a: int, b: int) -> None:
    with pytest.raises(ValueError, match="two different ones"):
        fano.orientation(a, b)


def test_there_is_no_unit_beyond_e7() -> None:
    with pytest.raises(ValueError, match="e0 to e7"):
        fano.unit(8)
