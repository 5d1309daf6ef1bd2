"""What residual seeds change of a route at one station: edges that send them, targets that take them, other inputs.

Pure; part of compiling a route (`stages.py`). The modes' meaning is in `docs/pair-x.md`. Of a route without seeds, and
of the layers that take none, nothing changes.
"""

from __future__ import annotations

from typing import NamedTuple

from aeonflow import fano
from aeonflow.messages import Carrier, Route
from aeonflow.passes import INITIAL, RESIDUAL
from aeonflow.route import holder, is_bypassed, num_parts
from aeonflow.tensors import Kind

from .addresses import address_of
from .seeds import CHAIN, mask, nibble

INPUT = -1  # as a SeedEdge's source: the stage's own input


SeedKey = tuple[int, int, int]  # Fano line, layer, kind: who takes a seed


class SeedEdge(NamedTuple):
    """One seed that a stage sends with every pass. `url` may be HERE or HOST (`addresses.py`)."""

    url: str
    line: int
    sign: int
    source: int  # index into the outputs of the stage, or INPUT
    src_layer: int
    kind: int
    needs_grow: bool = False


class SeedRule(NamedTuple):
    """What a slot of a mode waits for (a bitset of nibbles), and of which kind its seeds are."""

    mode: str
    kind: int
    expected: int


SHADOW = SeedRule("shadow", int(Kind.SHADOW), mask(nibble(RESIDUAL, fano.PLUS), CHAIN))
SHADOW_INITIAL = SeedRule("shadow", int(Kind.SHADOW), mask(nibble(INITIAL, fano.PLUS), CHAIN))
BYPASS = SeedRule("bypass", int(Kind.CANONICAL), mask(nibble(RESIDUAL, fano.PLUS)))


def seed_edges(route: Route, self_index: int, carrier: Carrier, layer: int) -> tuple[SeedEdge, ...]:
    """The seeds that `carrier` sends from `layer`."""
    if route.pair_x == "shadow" and carrier.role == "embed" and _is_initial_checked(route):
        return (_edge(route, self_index, INITIAL, 0, 0, 0, Kind.SHADOW),)
    if carrier.role != "attn" or layer + 1 not in route.seeded:
        return ()
    if route.pair_x == "shadow":
        source = INPUT if route.seed == "x" else 0
        return (_edge(route, self_index, RESIDUAL, layer, layer + 1, source, Kind.SHADOW),)
    if route.pair_x == "bypass":
        return (_edge(route, self_index, RESIDUAL, layer, layer + 1, 0, Kind.CANONICAL),)
    return ()


def seed_rules(route: Route, carrier: Carrier, layer: int) -> dict[SeedKey, SeedRule]:
    """The seeds that `carrier` takes at `layer`, and what their slots wait for."""
    if carrier.role != "attn":
        return {}
    rules: dict[SeedKey, SeedRule] = {}
    if route.pair_x == "shadow":
        if layer in route.seeded:
            rules[RESIDUAL, layer, SHADOW.kind] = SHADOW
        if layer == 0 and _is_initial_checked(route):
            rules[INITIAL, layer, SHADOW.kind] = SHADOW_INITIAL
    if is_bypassed(route, layer):
        rules[RESIDUAL, layer, BYPASS.kind] = BYPASS
    return rules


def relay_rules(role: str, layer: int) -> dict[SeedKey, SeedRule]:
    """The seeds that `role` takes at `layer` from a host that relays, whichever mode its route has."""
    if role != "attn":
        return {}
    if layer == 0:
        return {(INITIAL, 0, SHADOW.kind): SHADOW_INITIAL}
    return {(RESIDUAL, layer, SHADOW.kind): SHADOW, (RESIDUAL, layer, BYPASS.kind): BYPASS}


def _is_initial_checked(route: Route) -> bool:
    """Line 0 is open where the embedding row comes whole: of several shards x is a sum."""
    if num_parts(route, "embed") > 1:
        return False
    return any(c.role == "attn" and c.lo == 0 for c in route.carriers)


def _edge(route: Route, self_index: int, line: int, src_layer: int, layer: int, source: int, kind: Kind) -> SeedEdge:
    url = address_of(route, self_index, holder(route, "attn", layer).station)
    return SeedEdge(url, line, fano.PLUS, source, src_layer, int(kind))
