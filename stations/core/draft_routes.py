"""Seeded passes on a route, `draft` and `live`: who sends which seed to whom, and what their slots wait for.

Pure; part of compiling a route (`stages.py`). In both modes attention of a seeded layer starts from what comes past the
ffn below it, gives a to gate_up, and that forms h = x + a, which it sends on before it computes (design, *Residual
seeds*). Live: these are the canonical rows. Draft: a canonical pass with GROW leaves copies at the fork layer, from
which rows of kind DRAFT run through every later layer; a layer that is not seeded takes its own x there, exactly as the
canonical pass does, two hops later. Parallel models run live otherwise: x goes to attention and gate_up at once.
"""

from __future__ import annotations

from typing import NamedTuple

from aeonflow import bands, fano
from aeonflow.messages import Route
from aeonflow.route import Hop, fork_layer, holder, input_holders, is_live
from aeonflow.tensors import Kind, Port

from .addresses import address_of
from .forms import DELTA, NORMED, PLAIN
from .seed_routes import INPUT, SeedEdge, SeedKey, SeedRule
from .seeds import mask, nibble

RESIDUAL, ATTENTION, FFN = 1, 3, 5  # Fano lines 145, 246 and 347
_CANONICAL, _DRAFT = int(Kind.CANONICAL), int(Kind.DRAFT)
_A_AND_X = mask(nibble(ATTENTION, fano.PLUS), nibble(FFN, fano.PLUS))


class Seeding(NamedTuple):
    """What seeds change of one stage: `seeds` leave with its outputs, `early` as soon as its input is whole."""

    seeds: tuple[SeedEdge, ...] = ()
    early: tuple[SeedEdge, ...] = ()


def live_seeding(route: Route, self_index: int, role: str, layer: int) -> Seeding:
    """The seeds of canonical stages on a live route."""
    edge = _Edges(route, self_index, _CANONICAL)
    above = is_live(route, layer + 1)
    is_parallel = route.residual == "parallel"
    if role == "down" and above:
        return Seeding((edge.to_gate_up(FFN, layer + 1, 0),))
    if role == "attn" and not is_parallel:
        if is_live(route, layer):
            return Seeding((edge.to_gate_up(ATTENTION, layer, 0),))
        return Seeding((edge.to_attn(layer + 1, 0),)) if above else Seeding()
    if role == "gate_up" and is_live(route, layer) and above and not is_parallel:
        return Seeding(early=(edge.to_attn(layer + 1, INPUT),))
    return Seeding()


def live_rules(route: Route, role: str, layer: int) -> dict[SeedKey, SeedRule]:
    """The seeds that `role` takes at `layer` on a live route."""
    if not is_live(route, layer):
        return {}
    return _rules("live", _CANONICAL, role, layer, is_parallel=route.residual == "parallel")


def grow_seeding(route: Route, self_index: int, role: str, layer: int) -> Seeding:
    """What canonical stages leave for a draft, of passes that say GROW."""
    if route.pair_x != "draft" or not route.seeded or layer != fork_layer(route):
        return Seeding()
    edge = _Edges(route, self_index, _DRAFT, needs_grow=True)
    if role == "attn":
        return Seeding((edge.to_attn(layer + 1, INPUT if route.seed == "x" else 0),))
    return Seeding(_after_down(route, edge, layer)) if role == "down" else Seeding()


def drafts_at(route: Route, role: str, layer: int) -> bool:
    """Has `role` at `layer` a stage for drafts?"""
    if route.pair_x != "draft" or not route.seeded:
        return False
    return role == "head" or (role in ("attn", "gate_up", "down") and layer > fork_layer(route))


def draft_form(role: str) -> str:
    """The form of a role's stage for drafts."""
    return {"attn": DELTA, "gate_up": NORMED}.get(role, PLAIN)


def draft_seeding(route: Route, self_index: int, role: str, layer: int) -> Seeding:
    """The seeds of a stage for drafts."""
    edge = _Edges(route, self_index, _DRAFT)
    if role == "attn":
        return Seeding((edge.to_gate_up(ATTENTION, layer, 0),))
    if role == "gate_up" and route.seed == "h" and layer + 1 in route.seeded:
        return Seeding(early=(edge.to_attn(layer + 1, INPUT),))
    if role == "down" and layer + 1 < route.num_layers:
        return Seeding(_after_down(route, edge, layer))
    return Seeding()


def draft_rules(role: str, layer: int) -> dict[SeedKey, SeedRule]:
    """The seeds that a stage for drafts takes."""
    return _rules("draft", _DRAFT, role, layer, is_parallel=False)


def draft_hops(route: Route, role: str, layer: int) -> list[Hop]:
    """Outputs of a stage for drafts that travel as those of canonical passes do."""
    if role == "gate_up":
        down = holder(route, "down", layer).station
        return [Hop(down, bands.DOWN, layer, Port.H), Hop(down, bands.DOWN, layer, Port.U)]
    if role == "down" and layer + 1 == route.num_layers:
        return [Hop(c.station, bands.HEAD, 0, Port.X) for c in input_holders(route, route.num_layers)]
    return []


def _after_down(route: Route, edge: _Edges, layer: int) -> tuple[SeedEdge, ...]:
    """x of layer + 1: to its gate_up, to its attention where that is not seeded, and as the seed of S2 one layer up."""
    seeds = [edge.to_gate_up(FFN, layer + 1, 0)]
    if layer + 1 not in route.seeded:
        seeds.append(edge.to_attn(layer + 1, 0))
    if route.seed == "x" and layer + 2 in route.seeded:
        seeds.append(edge.to_attn(layer + 2, 0))
    return tuple(seeds)


def _rules(mode: str, kind: int, role: str, layer: int, *, is_parallel: bool) -> dict[SeedKey, SeedRule]:
    if role == "attn" and not is_parallel:
        return {(RESIDUAL, layer, kind): SeedRule(mode, kind, mask(nibble(RESIDUAL, fano.PLUS)))}
    if role != "gate_up":
        return {}
    if is_parallel:
        return {(FFN, layer, kind): SeedRule(mode, kind, mask(nibble(FFN, fano.PLUS)))}
    rule = SeedRule(mode, kind, _A_AND_X)
    return {(ATTENTION, layer, kind): rule, (FFN, layer, kind): rule}


class _Edges:
    """Makes seed edges of one station and kind."""

    def __init__(self, route: Route, self_index: int, kind: int, *, needs_grow: bool = False) -> None:
        self._route = route
        self._self_index = self_index
        self._kind = kind
        self._needs_grow = needs_grow

    def to_attn(self, layer: int, source: int) -> SeedEdge:
        """Line 145 to the attention of `layer`."""
        return self._edge("attn", layer, RESIDUAL, layer - 1, source)

    def to_gate_up(self, line: int, layer: int, source: int) -> SeedEdge:
        """a (line 246, of the same layer) or x (line 347, of the layer below) to gate_up of `layer`."""
        return self._edge("gate_up", layer, line, layer if line == ATTENTION else layer - 1, source)

    def _edge(self, role: str, layer: int, line: int, src_layer: int, source: int) -> SeedEdge:
        url = address_of(self._route, self._self_index, holder(self._route, role, layer).station)
        return SeedEdge(url, line, fano.PLUS, source, src_layer, self._kind, self._needs_grow)
