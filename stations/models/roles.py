"""Role lists as users write them: `attn:0-14,gate_up:0-14,embed,head:0/2`. Pure text and numbers.

A layer role takes `LO-HI` (both ends included), one layer `N`, or nothing (all layers); embed and head take a shard
`i/n` or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .errors import UnsupportedModelError

LAYER_ROLES = ("attn", "gate_up", "down", "block")
END_ROLES = ("embed", "head")
MAX_PARTS = 32  # shards of embed or head; the wire's options byte has five bits for the index

_ITEM = re.compile(r"^(?P<role>[a-z_]+)(?::(?P<range>[0-9]+(?:[-/][0-9]+)?))?$")


class RoleSpan(NamedTuple):
    """`role` over layers lo..hi, both included (embed and head: 0..0), as shard `part` of `parts`."""

    role: str
    lo: int = 0
    hi: int = 0
    part: int = 0
    parts: int = 1

    def __str__(self) -> str:
        if self.role in END_ROLES:
            return self.role if self.parts == 1 else f"{self.role}:{self.part}/{self.parts}"
        return f"{self.role}:{self.lo}-{self.hi}"


def parse_roles(text: str, num_layers: int) -> tuple[RoleSpan, ...]:
    """The spans of a comma-separated role list for a model of `num_layers` layers.

    Raises UnsupportedModelError that names the item, and the range that the model has.
    """
    spans = tuple(_parse_item(item.strip(), num_layers) for item in text.split(",") if item.strip())
    if not spans:
        raise UnsupportedModelError(f"roles {text!r}: empty; known roles are {', '.join(LAYER_ROLES + END_ROLES)}")
    return spans


def all_roles(num_layers: int) -> tuple[RoleSpan, ...]:
    """Every role of a model."""
    return RoleSpan("embed"), RoleSpan("block", 0, num_layers - 1), RoleSpan("head")


def layer_roles(spans: Iterable[RoleSpan]) -> set[tuple[str, int]]:
    """(role, layer) pairs that the spans need, `block` taken apart into attn, gate_up and down."""
    needed: set[tuple[str, int]] = set()
    for span in spans:
        if span.role in END_ROLES:
            needed.add((span.role, 0))
            continue
        parts = ("attn", "gate_up", "down") if span.role == "block" else (span.role,)
        needed.update((role, layer) for role in parts for layer in range(span.lo, span.hi + 1))
    return needed


def _parse_item(item: str, num_layers: int) -> RoleSpan:
    match = _ITEM.match(item)
    role = match["role"] if match else ""
    if match is None or role not in LAYER_ROLES + END_ROLES:
        raise UnsupportedModelError(f"role {item!r}: known roles are {', '.join(LAYER_ROLES + END_ROLES)}")
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
    if lo > hi or hi >= num_layers:
        raise UnsupportedModelError(f"role {item!r}: layers {lo}-{hi}, the model has 0-{num_layers - 1}")
    return RoleSpan(role, lo, hi)
