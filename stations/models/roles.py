"""Role lists as users write them: `attn:0-14,gate_up:0-14,embed,head:0/2`. Pure text and numbers.

A layer role takes `LO-HI` (both ends included), one layer `N`, or nothing (all layers); embed and head take a shard
`i/n` or nothing; ffn takes both, layers and its slice of the width: `ffn:0-14:1/2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .errors import UnsupportedModelError

LAYER_ROLES = ("attn", "gate_up", "down", "block")
END_ROLES = ("embed", "head")
SLICED_ROLE = "ffn"  # gate, up and down of a part of the ffn width
SLICES = (2, 4, 8)  # the sum over the ffn width has 8 fixed segments (docs/numerics.md): other cuts would change bits
MAX_PARTS = 32  # shards of embed or head; the wire's options byte has five bits for the index

_MADE_OF = {"block": ("attn", "gate_up", "down"), SLICED_ROLE: ("gate_up", "down")}
_ITEM = re.compile(r"^(?P<role>[a-z_]+)(?::(?P<range>[0-9]+(?:[-/][0-9]+)?))?$")
_SLICE = re.compile(r"^ffn:(?P<lo>[0-9]+)(?:-(?P<hi>[0-9]+))?:(?P<part>[0-9]+)/(?P<parts>[0-9]+)$")
_KNOWN = ", ".join((*LAYER_ROLES, SLICED_ROLE, *END_ROLES))


class RoleSpan(NamedTuple):
    """`role` over layers lo..hi, both included (embed and head: 0..0), as shard or slice `part` of `parts`."""

    role: str
    lo: int = 0
    hi: int = 0
    part: int = 0
    parts: int = 1

    def __str__(self) -> str:
        if self.role in END_ROLES:
            return self.role if self.parts == 1 else f"{self.role}:{self.part}/{self.parts}"
        layers = f"{self.role}:{self.lo}-{self.hi}"
        return f"{layers}:{self.part}/{self.parts}" if self.role == SLICED_ROLE else layers


def parse_roles(text: str, num_layers: int) -> tuple[RoleSpan, ...]:
    """The spans of a comma-separated role list for a model of `num_layers` layers.

    Raises UnsupportedModelError that names the item, and the range that the model has.
    """
    spans = tuple(_parse_item(item.strip(), num_layers) for item in text.split(",") if item.strip())
    if not spans:
        raise UnsupportedModelError(f"roles {text!r}: empty; known roles are {_KNOWN}")
    return spans


def all_roles(num_layers: int) -> tuple[RoleSpan, ...]:
    """Every role of a model."""
    return RoleSpan("embed"), RoleSpan("block", 0, num_layers - 1), RoleSpan("head")


def layer_roles(spans: Iterable[RoleSpan]) -> set[tuple[str, int]]:
    """(role, layer) pairs that the spans need: `block` taken apart into attn, gate_up and down, `ffn` into two."""
    needed: set[tuple[str, int]] = set()
    for span in spans:
        if span.role in END_ROLES:
            needed.add((span.role, 0))
            continue
        parts = _MADE_OF.get(span.role, (span.role,))
        needed.update((role, layer) for role in parts for layer in range(span.lo, span.hi + 1))
    return needed


def _parse_item(item: str, num_layers: int) -> RoleSpan:
    if item.partition(":")[0] == SLICED_ROLE:
        return _parse_slice(item, num_layers)
    match = _ITEM.match(item)
    role = match["role"] if match else ""
    if match is None or role not in LAYER_ROLES + END_ROLES:
        raise UnsupportedModelError(f"role {item!r}: known roles are {_KNOWN}")
    numbers = [int(n) for n in re.split("[-/]", match["range"])] if match["range"] else []
    if role in END_ROLES:
        if not numbers:
            return RoleSpan(role)
        if "/" not in item:
            raise UnsupportedModelError(f"role {item!r}: {role} takes a shard as i/n, {role}:0/2 for example")
        part, parts = numbers
        if not 1 <= parts <= MAX_PARTS or part >= parts:
            raise UnsupportedModelError(f"role {item!r}: shards are 0/n to n-1/n, n at most {MAX_PARTS}")
        return RoleSpan(role, part=part, parts=parts)
    if "/" in item:
        raise UnsupportedModelError(f"role {item!r}: {role} takes layers as LO-HI, {role}:0-{num_layers - 1} for all")
    lo, hi = (numbers[0], numbers[-1]) if numbers else (0, num_layers - 1)
    _check_layers(item, lo, hi, num_layers)
    return RoleSpan(role, lo, hi)


def _parse_slice(item: str, num_layers: int) -> RoleSpan:
    match = _SLICE.match(item)
    if match is None:
        raise UnsupportedModelError(
            f"role {item!r}: ffn takes layers and a slice, ffn:0-{num_layers - 1}:0/2 for the first half of all"
        )
    lo, part, parts = int(match["lo"]), int(match["part"]), int(match["parts"])
    hi = int(match["hi"]) if match["hi"] else lo
    _check_layers(item, lo, hi, num_layers)
    if parts not in SLICES or part >= parts:
        raise UnsupportedModelError(f"role {item!r}: slices are 0/k to k-1/k, k one of {', '.join(map(str, SLICES))}")
    return RoleSpan(SLICED_ROLE, lo, hi, part, parts)


def _check_layers(item: str, lo: int, hi: int, num_layers: int) -> None:
    if lo > hi or hi >= num_layers:
        raise UnsupportedModelError(f"role {item!r}: layers {lo}-{hi}, the model has 0-{num_layers - 1}")
