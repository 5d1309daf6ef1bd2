"""The units of compiled code: what is compiled as one object file and found in it under one name.

A unit is named `layers`, `attend`, `overlay`, `row`, `product.KIND`, `int8.KIND` or `lookup.KIND`; a backend loads
those of its weight kinds only. All take int64 arguments. Imports numba only when a unit is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from ...layout import FORMATS, weight_format
from .limits import FORM_F32, FORM_INT8

LAYERS, ATTEND, ROW, OVERLAY = "layers", "attend", "row", "overlay"
_NUM_ARGUMENTS = {LAYERS: 2, ATTEND: 11, ROW: 3, OVERLAY: 11, "product": 11, "int8": 11, "lookup": 4}
# about, to share work out
_COMPILE_COST_S = {LAYERS: 5.0, ATTEND: 6.0, ROW: 0.3, OVERLAY: 6.0, "product": 0.9, "int8": 0.7, "lookup": 0.1}
STRAIGHT_FAMILIES = ("product", "int8", "lookup")  # long vector code without branches

_PACKAGE = Path(__file__).parent
_KV = ("../../kv/table.py", "../../kv/whole_numbers.py")
_LAYOUT = ("../../layout/formats.py", "../../layout/matrix.py")
_COMMON = ("compiler.py", "compiled.py", "target.py", "vector.py", "machine.py", "limits.py", "units.py")
# what a unit is made from: a change there, and only there, makes it another unit in the compile cache
SOURCES = {
    LAYERS: (*_COMMON, "fields.py", "codes.py", "product.py", "dot.py", "int8.py", "rows.py", "rope.py", "kv_codes.py",
             "jobs.py", "pool.py", "layers.py", *_KV, *_LAYOUT),
    ATTEND: (*_COMMON, "attend_unit.py", "attention*.py", "dot.py", *_KV),
    OVERLAY: (*_COMMON, "overlay_unit.py", "fields.py", "attention*.py", "dot.py", *_KV, "../../kv/nystrom.py"),
    ROW: (*_COMMON, "fields.py", "row_fields.py", "row_unit.py"),
    "product": (*_COMMON, "codes.py", "product.py", *_LAYOUT),
    "int8": (*_COMMON, "codes.py", "product.py", "dot.py", "int8.py", *_LAYOUT),
    "lookup": (*_COMMON, "codes.py", "rows.py", *_LAYOUT),
}  # fmt: skip


class Unit(NamedTuple):
    """One unit: its name, the symbol it exports, and how many int64 arguments that takes."""

    name: str
    symbol: str
    num_arguments: int


def unit(name: str) -> Unit:
    """The unit called `name`."""
    return Unit(name, f"aeonflow_{name.replace('.', '_')}", _NUM_ARGUMENTS[name.partition(".")[0]])


@cache
def source_digest(family: str) -> str:
    """Hash of the sources of a family of units ("layers", "attend", "product", "int8", "lookup"), hex."""
    digest = blake3()
    for pattern in SOURCES[family]:
        for path in sorted(_PACKAGE.glob(pattern) if "/" not in pattern else _outside(pattern)):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _outside(pattern: str) -> Iterable[Path]:
    """Sources beside this package: `pattern` begins with ../ steps."""
    folder = (_PACKAGE / pattern).parent.resolve()
    return folder.glob(Path(pattern).name)


def object_name(name: str) -> str:
    """File name of a unit's object file."""
    return f"{name}-{source_digest(name.partition('.')[0])[:16]}.o"


def compile_cost_s(name: str) -> float:
    """About how long a unit takes to compile."""
    return _COMPILE_COST_S[name.partition(".")[0]]


def product_unit(kind: str, form: int = FORM_F32) -> str:
    """The unit that multiplies matrices of a kind by activations of a form."""
    return f"{'int8' if form == FORM_INT8 else 'product'}.{kind}"


def activation_form(kind: str, *, is_int8: bool) -> int:
    """The form in which matrices of a kind read activations: 8 bits only in that kernel set, and beside codes."""
    return FORM_INT8 if is_int8 and weight_format(kind).code_bits <= 8 else FORM_F32


def lookup_unit(kind: str) -> str:
    return f"lookup.{kind}"


def units_of(
    product_kinds: Iterable[str], lookup_kinds: Iterable[str] = (), *, is_int8: bool = False
) -> tuple[str, ...]:
    """Names of the units that matrices of these kinds need, the slowest to compile first."""
    kinds = sorted(set(product_kinds))
    products = tuple(product_unit(kind, activation_form(kind, is_int8=is_int8)) for kind in kinds)
    return (LAYERS, ATTEND, OVERLAY, ROW, *products, *(lookup_unit(kind) for kind in sorted(set(lookup_kinds))))


ALL_UNITS = tuple(dict.fromkeys((*units_of(FORMATS, FORMATS), *units_of(FORMATS, is_int8=True))))


def build(name: str) -> Any:
    """The numba function of a unit, not compiled yet. Imports numba."""
    family, _, kind = name.partition(".")
    if family == LAYERS:
        from .layers import execute

        return execute
    if family == ATTEND:
        from .attend_unit import attend_heads

        return attend_heads
    if family == OVERLAY:
        from .overlay_unit import overlay_call

        return overlay_call
    if family == ROW:
        from .row_unit import pass_row

        return pass_row
    if family in ("product", "int8"):
        from .product import make_product

        return make_product(kind, FORM_INT8 if family == "int8" else FORM_F32)
    from .rows import make_lookup

    return make_lookup(kind)
