"""The units of compiled code: what is compiled as one object file and found in it under one name.

A unit is named `layers`, `attend`, `product.KIND` or `lookup.KIND`; a backend loads those of its weight kinds only.
All take int64 arguments. Imports numba only when a unit is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...layout import FORMATS

LAYERS, ATTEND = "layers", "attend"
_NUM_ARGUMENTS = {LAYERS: 2, ATTEND: 11, "product": 9, "lookup": 4}
_COMPILE_COST_S = {LAYERS: 6.0, ATTEND: 4.0, "product": 2.0, "lookup": 0.5}  # about, to share work out


class Unit(NamedTuple):
    """One unit: its name, the symbol it exports, and how many int64 arguments that takes."""

    name: str
    symbol: str
    num_arguments: int


def unit(name: str) -> Unit:
    """The unit called `name`."""
    return Unit(name, f"aeonflow_{name.replace('.', '_')}", _NUM_ARGUMENTS[name.partition(".")[0]])


def compile_cost_s(name: str) -> float:
    """About how long a unit takes to compile."""
    return _COMPILE_COST_S[name.partition(".")[0]]


def product_unit(kind: str) -> str:
    return f"product.{kind}"


def lookup_unit(kind: str) -> str:
    return f"lookup.{kind}"


def units_of(product_kinds: Iterable[str], lookup_kinds: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of the units that matrices of these kinds need, the slowest to compile first."""
    products = tuple(product_unit(kind) for kind in sorted(set(product_kinds)))
    return (LAYERS, ATTEND, *products, *(lookup_unit(kind) for kind in sorted(set(lookup_kinds))))


ALL_UNITS = units_of(FORMATS, FORMATS)


def build(name: str) -> Any:
    """The numba function of a unit, not compiled yet. Imports numba."""
    family, _, kind = name.partition(".")
    if family == LAYERS:
        from .layers import execute

        return execute
    if family == ATTEND:
        from .jobs import attend_heads

        return attend_heads
    if family == "product":
        from .product import make_product

        return make_product(kind)
    from .rows import make_lookup

    return make_lookup(kind)
