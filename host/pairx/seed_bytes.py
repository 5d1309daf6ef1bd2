"""Bytes that residual seeds add to what a decoded token moves, on routes where each pass sends the same ones. Pure."""

from __future__ import annotations

from aeonflow.frames import HEADER_BYTES
from aeonflow.messages import Route
from aeonflow.passes import FINGERPRINT_BYTES
from aeonflow.route import holder, num_parts
from aeonflow.tensors import PREFIX_BYTES


def added_chain_bytes(route: Route, hidden_size: int) -> int:
    """Of a chain in modes shadow and bypass, by frames between processes; less than 0 where h stays on its station.

    Drafts and live seeds are not counted: how many of the former go is the switch's affair.
    """
    rows = HEADER_BYTES + PREFIX_BYTES + 4 * hidden_size
    if route.pair_x == "shadow":
        crossing = sum(_crosses(route, "attn", layer - 1, "attn", layer) for layer in route.seeded)
        return rows * (crossing + (num_parts(route, "embed") == 1 and _crosses(route, "embed", 0, "attn", 0)))
    if route.pair_x == "bypass":
        seeds = sum(_crosses(route, "attn", layer - 1, "attn", layer) for layer in route.seeded)
        spared = sum(_crosses(route, "attn", layer - 1, "down", layer - 1) for layer in route.seeded)
        return seeds * (rows + PREFIX_BYTES + FINGERPRINT_BYTES) - spared * rows
    return 0


def _crosses(route: Route, role: str, layer: int, to_role: str, to_layer: int) -> bool:
    if to_role == "attn" and not any(c.role == "attn" and c.lo <= to_layer <= c.hi for c in route.carriers):
        return False
    return holder(route, role, layer).station != holder(route, to_role, to_layer).station
