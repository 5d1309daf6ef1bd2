"""Where a station's outputs go, derived from a route's table. Pure: shared by stations, host and planner.

A station never stores edges: it holds the whole table (`messages.Route`) and asks `successors`. Rules, per layer l
(`docs/protocol.md`, *Chains*):

    embed part i      → x (part i)  to the holder of layer 0's input
    attn l            → n to gate_up l, h to down l; of a layer cut into ffn slices n to every slice of l, and h to
                        whoever takes the input of layer l+1
    gate_up l         → u to down l
    ffn l, slice i    → f (part i) to whoever takes the input of layer l+1, which adds x = h + the sum of the slices
    down l, block ..l → x to the holder of layer l+1's input, after the last layer to every head part
    down l, bypassed  → f there; h of attn l reaches it as a seed, and down gets u alone (`is_bypassed` of l+1)
    head part i       → logits (part i) or the acknowledgement to the host

In a ladder attn l+1 (or the block that starts there) takes h of layer l too: h of attn l, or of a block beside its x,
goes there as well. Where a layer is live (`is_live`) inputs come as seeds, and only what is left goes along here:

    attn l            → nothing: a goes to gate_up l as a seed; of a parallel model h to down l
    gate_up l         → h and u to down l in one message, h also to whoever takes the next layer's input of a ladder;
                        of a parallel model u to down l
    down l, below one → of a parallel model x to attn l+1, else nothing: x goes to gate_up l+1 as a seed
"""

from __future__ import annotations

from typing import NamedTuple

from . import bands
from .errors import PlanError
from .messages import PAIR_X_MODES, RESIDUALS, SEEDS, Carrier, Route
from .tensors import Port


class Hop(NamedTuple):
    """One output edge: `port` goes to station `station` (index in the route) on `stream`, for `layer`."""

    station: int
    stream: int
    layer: int
    port: Port


def input_holders(route: Route, layer: int) -> list[Carrier]:
    """Who takes x at the entry of `layer`: the block that starts there or attn; every head part past the end."""
    if layer == route.num_layers:
        return sorted((c for c in route.carriers if c.role == "head"), key=lambda c: c.part)
    for c in route.carriers:
        if (c.role == "block" and c.lo == layer) or (c.role == "attn" and c.lo <= layer <= c.hi):
            return [c]
    raise PlanError(f"no station takes the input of layer {layer}: expected attn over it or a block from it")


def holder(route: Route, role: str, layer: int) -> Carrier:
    """The carrier of `role` at `layer`; PlanError names what is missing."""
    for c in route.carriers:
        if c.role == role and c.lo <= layer <= c.hi:
            return c
    raise PlanError(f"no station carries {role} of layer {layer}")


def ffn_slices(route: Route, layer: int) -> list[Carrier]:
    """The slices of the ffn of `layer` in order; empty where the layer is not cut so. PlanError when one is missing."""
    found = sorted((c for c in route.carriers if c.role == "ffn" and c.lo <= layer <= c.hi), key=lambda c: c.part)
    if found and [(c.part, c.parts) for c in found] != [(part, found[0].parts) for part in range(found[0].parts)]:
        there = ", ".join(f"{c.part}/{c.parts}" for c in found)
        raise PlanError(f"ffn of layer {layer}: slices {there} on the route; 0/k to k-1/k are needed, each once")
    return found


def num_parts(route: Route, role: str) -> int:
    """How many shards `role` (embed or head) has on this route."""
    return max((c.parts for c in route.carriers if c.role == role), default=0)


def successors(route: Route, role: str, layer: int) -> list[Hop]:
    """Output edges of `role` at `layer` (for a block: its last layer). Empty for the head: it answers the host."""
    if role == "attn":
        return _after_attn(route, layer)
    if role == "gate_up":
        return _after_gate_up(route, layer)
    if role == "down" and is_bypassed(route, layer + 1):
        return _into(route, layer + 1, Port.F)
    if role == "down" and is_live(route, layer + 1):
        return _into(route, layer + 1, Port.X) if route.residual == "parallel" else []
    if role == "down":
        return _into(route, layer + 1, Port.X)
    if role == "block":
        return [*_into(route, layer + 1, Port.X), *_up_the_ladder(route, layer)]
    if role == "embed":
        return _into(route, 0, Port.X)
    if role == "ffn":
        return _into(route, layer + 1, Port.F)
    if role == "head":
        return []
    raise PlanError(f"role {role!r} has no place in a chain")


def _after_attn(route: Route, layer: int) -> list[Hop]:
    if slices := ffn_slices(route, layer):
        return [*(Hop(c.station, bands.FFN, layer, Port.N) for c in slices), *_into(route, layer + 1, Port.H)]
    gate_up, down = holder(route, "gate_up", layer), holder(route, "down", layer)
    to_gate_up = Hop(gate_up.station, bands.GATE_UP, layer, Port.N)
    to_down = Hop(down.station, bands.DOWN, layer, Port.H)
    if is_bypassed(route, layer + 1):
        return [to_gate_up]
    if is_live(route, layer):
        return [to_down] if route.residual == "parallel" else []
    return [to_gate_up, to_down, *_up_the_ladder(route, layer)]


def _after_gate_up(route: Route, layer: int) -> list[Hop]:
    down = holder(route, "down", layer).station
    to_down = Hop(down, bands.DOWN, layer, Port.U)
    if is_live(route, layer) and route.residual != "parallel":
        return [Hop(down, bands.DOWN, layer, Port.H), to_down, *_up_the_ladder(route, layer)]
    return [to_down]


def _up_the_ladder(route: Route, layer: int) -> list[Hop]:
    """h of `layer` to the input above it, which takes it beside x in a ladder; not where it comes as a seed."""
    if route.residual != "ladder" or layer + 1 == route.num_layers or is_live(route, layer + 1):
        return []
    return _into(route, layer + 1, Port.H)


def is_live(route: Route, layer: int) -> bool:
    """Is the attention of `layer` computed from what comes as a seed, ahead of the ffn below it or beside its own?"""
    return route.pair_x == "live" and layer in route.seeded


def is_bypassed(route: Route, layer: int) -> bool:
    """Does h of the layer below reach the attention of `layer` as a seed, and from down only the ffn's share?"""
    return route.pair_x == "bypass" and layer in route.seeded


def has_canonical_seeds(route: Route) -> bool:
    """Are rows computed from seeds, so that a lost one holds them up?"""
    return bool(route.seeded) and route.pair_x in ("bypass", "live")


def takes_canonical_seed(route: Route, role: str, layer: int) -> bool:
    """May `role` of `layer` have to wait for a seed before it can compute?"""
    if not has_canonical_seeds(route) or layer not in route.seeded:
        return False
    return role == "attn" or (role == "gate_up" and route.pair_x == "live")


def check_pair_x(route: Route) -> None:
    """PlanError unless the route's residual seeds can be: a mode there is, layers there are, attn, gate_up and down."""
    if route.pair_x not in PAIR_X_MODES:
        raise PlanError(f"pair_x {route.pair_x!r} of route {route.route}: one of {', '.join(PAIR_X_MODES)} is expected")
    if route.seed not in SEEDS:
        raise PlanError(f"seed {route.seed!r} of route {route.route}: one of {', '.join(SEEDS)} is expected")
    if route.residual not in RESIDUALS:
        raise PlanError(f"residual {route.residual!r} of route {route.route}: known are {', '.join(RESIDUALS)}")
    if route.pair_x == "off":
        return
    if route.residual != "sequential" and route.pair_x != "live":
        raise PlanError(f"pair_x {route.pair_x} with a {route.residual} residual: off and live are possible")
    if route.pair_x == "live" and route.seed != "h":
        raise PlanError(f"pair_x live with seeds {route.seed!r}: live takes h")
    for layer in route.seeded:
        if not 1 <= layer < route.num_layers:
            raise PlanError(f"layer {layer} of route {route.route} is to be seeded: 1 to {route.num_layers - 1} can be")
        for below in (layer - 1, layer):
            _check_split(route, below)
    if route.pair_x == "draft":
        for layer in range(fork_layer(route), route.num_layers):
            _check_split(route, layer)


def fork_layer(route: Route) -> int:
    """The layer where a draft leaves the canonical pass: below the first seeded one. Later layers are all its own."""
    return min(route.seeded, default=route.num_layers) - 1


def _check_split(route: Route, layer: int) -> None:
    for role in ("attn", "gate_up", "down"):
        holder(route, role, layer)


def _into(route: Route, layer: int, port: Port) -> list[Hop]:
    """`port` to whoever takes the input of `layer`."""
    return [
        Hop(c.station, bands.ROLE_STREAMS[c.role], 0 if c.role == "head" else layer, port)
        for c in input_holders(route, layer)
    ]
