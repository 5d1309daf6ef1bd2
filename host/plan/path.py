"""The path of one decoded token through a plan: which calls, which messages, how many crossings, how long.

A chain is walked over the route's own edges (`aeonflow.route.successors`), so what is predicted is what stations
do. Times: T = hops of the slowest path x one-way latency + the computes on it (`docs/plans.md`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from aeonflow.bands import STREAM_ROLES
from aeonflow.frames import HEADER_BYTES
from aeonflow.messages import Carrier, Route
from aeonflow.route import successors
from aeonflow.tensors import PREFIX_BYTES, Port

from .plan import Plan, to_carriers, to_route
from .sizes import Geometry

HOST = -1  # the host's place among station indices


class Link(msgspec.Struct, frozen=True):
    """One crossing between processes: seconds of one-way latency, software included, and seconds a byte."""

    hop_s: float
    byte_s: float = 0.0


class TokenPath(msgspec.Struct, frozen=True):
    """One decoded token: crossings on the longest path, bytes of all frames between processes, seconds."""

    hops: int
    bytes: int
    seconds: float


class Call(msgspec.Struct, frozen=True):
    """One call a token: `carrier` at `layer` (a block's last layer), the only call of its carrier there."""

    carrier: Carrier
    layer: int


ComputeSeconds = Callable[[Call], float]


def calls_of(plan: Plan) -> list[Call]:
    """Every call one token makes, in execution order: embed parts, layers, head parts."""
    carriers = to_carriers(plan)
    ends = {role: [Call(c, 0) for c in carriers if c.role == role] for role in ("embed", "head")}
    order = {"attn": 0, "gate_up": 1, "ffn": 1, "down": 2}
    layers = [Call(c, layer) for c in carriers if c.role in order for layer in range(c.lo, c.hi + 1)]
    layers += [Call(c, c.hi) for c in carriers if c.role == "block"]
    layers.sort(key=lambda call: (call.layer, order.get(call.carrier.role, 3), call.carrier.part))
    return [*ends["embed"], *layers, *ends["head"]]


def chain_path(plan: Plan, geometry: Geometry, compute: ComputeSeconds, link: Link) -> TokenPath:
    """A token on a chain: each station forwards to its successors, the head parts answer the host."""
    route = to_route(plan, 1, [""] * len(plan.stations))
    arrival: dict[tuple[str, int, int], tuple[float, int]] = {}  # (role, entry layer, part) → latest input, its hops
    total_bytes = 0
    finish = (0.0, 0)

    def arrive(key: tuple[str, int, int], source: int, target: int, size: int, at: float, hops: int) -> None:
        nonlocal total_bytes
        if crosses := not (source == target or plan.embedded):
            total_bytes += size
        at += (link.hop_s + size * link.byte_s) * crosses
        before = arrival.get(key, (0.0, 0))
        arrival[key] = (max(before[0], at), max(before[1], hops + crosses))

    calls = calls_of(plan)
    for call in calls:
        carrier = call.carrier
        if carrier.role == "embed":
            arrive(_key(carrier, 0), HOST, carrier.station, _frame(4), 0.0, 0)
    for call in calls:
        carrier = call.carrier
        at, hops = arrival[_key(carrier, carrier.lo if carrier.role == "block" else call.layer)]
        at += compute(call)
        if carrier.role == "head":
            arrive(("host", 0, 0), carrier.station, HOST, _frame(_logits_bytes(geometry, carrier)), at, hops)
            finish = arrival[("host", 0, 0)]
            continue
        sent: set[tuple[Port, int]] = set()  # several parts on one station take their input from one message
        for key, port, station in _edges(route, call):
            size = 0 if (port, station) in sent else _frame(_port_bytes(geometry, port))
            sent.add((port, station))
            arrive(key, carrier.station, station, size, at, hops)
    return TokenPath(finish[1], total_bytes, finish[0])


def relay_path(plan: Plan, geometry: Geometry, compute: ComputeSeconds, link: Link) -> TokenPath:
    """A token relayed by the host: a request and a reply for every call; shards and slices work side by side."""
    if plan.embedded:
        return TokenPath(0, 0, sum(compute(call) for call in calls_of(plan)))
    hops, total_bytes, seconds = 0, 0, 0.0
    slowest: dict[tuple[str, int], float] = {}
    for call in calls_of(plan):
        request, reply = _relay_bytes(geometry, call.carrier)
        total_bytes += request + reply
        took = compute(call) + 2 * link.hop_s + (request + reply) * link.byte_s
        if call.carrier.role in ("embed", "head", "ffn"):
            together = (call.carrier.role, call.layer)
            hops += 2 if together not in slowest else 0
            slowest[together] = max(slowest.get(together, 0.0), took)
        else:
            hops += 2
            seconds += took
    return TokenPath(hops, total_bytes, seconds + sum(slowest.values()))


def _key(carrier: Carrier, layer: int) -> tuple[str, int, int]:
    return (carrier.role, layer, carrier.part)


def _edges(route: Route, call: Call) -> list[tuple[tuple[str, int, int], Port, int]]:
    """(key of the call that takes it, port, station) of every output of a call."""
    edges = []
    parts: dict[str, int] = {}  # successors come in the order of the parts
    for hop in successors(route, call.carrier.role, call.layer):
        role = STREAM_ROLES[hop.stream]
        part = parts.get(role, 0)
        parts[role] = part + 1
        edges.append(((role, hop.layer, part), hop.port, hop.station))
    return edges


def _frame(*tensor_bytes: int) -> int:
    return HEADER_BYTES + sum(PREFIX_BYTES + size for size in tensor_bytes)


def _port_bytes(geometry: Geometry, port: Port) -> int:
    return 4 * (geometry.ffn_size if port is Port.U else geometry.hidden_size)


def _logits_bytes(geometry: Geometry, head: Carrier) -> int:
    groups = -(-geometry.vocab_size // 16)  # shards lie on boundaries of 16 rows
    lo, hi = (min(groups * p // head.parts * 16, geometry.vocab_size) for p in (head.part, head.part + 1))
    return 4 * (hi - lo)


def _relay_bytes(geometry: Geometry, carrier: Carrier) -> tuple[int, int]:
    """Frame bytes of the request and of the reply of one relayed call."""
    hidden, ffn = 4 * geometry.hidden_size, 4 * geometry.ffn_size
    if carrier.role == "head":
        return _frame(hidden), _frame(_logits_bytes(geometry, carrier))
    return {
        "embed": (_frame(4), _frame(hidden)),
        "attn": (_frame(hidden), _frame(hidden, hidden)),
        "gate_up": (_frame(hidden), _frame(ffn)),
        "down": (_frame(hidden, ffn), _frame(hidden)),
        "ffn": (_frame(hidden), _frame(hidden)),
        "block": (_frame(hidden), _frame(hidden)),
    }[carrier.role]
