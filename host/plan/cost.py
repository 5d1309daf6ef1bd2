"""What a plan costs before it starts: memory a station, hops and bytes a token, predicted tokens a second, warnings.

The model is a few sums (`docs/plans.md`): a role reads its weights once a token at the machine's speed, a call has a
fixed cost, a crossing a latency. Measured numbers go in as arguments; nothing here measures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from aeonflow.errors import PlanError
from aeonflow.kv_options import KvOptions, check_on_model
from aeonflow.kv_sizes import session_bytes

from .check import check, check_slices
from .path import Call, Link, TokenPath, calls_of, chain_path, relay_path
from .plan import Plan, StationSpec, to_carriers
from .presets import expand_preset
from .sizes import Geometry, WeightSizes

SLOWER_FACTOR = 1.1  # a plan is warned about when fewer stations are faster by more than this
_MAX_ALTERNATIVES = 64


class Machine(msgspec.Struct, frozen=True):
    """What a station's machine does with one thread, and what a process takes.

    weights_byte_s: seconds to compute with one byte of packed weights for one row; call_s: fixed cost of a call;
    hop_s: one-way latency between processes, software included; link_byte_s: seconds a byte on a link;
    process_bytes: private memory of a station without weights and KV; memory_bytes: what a station may take, if known;
    cores: how many cores all stations share, None when each has a machine of its own.
    """

    weights_byte_s: float = 1 / 12e9
    call_s: float = 20e-6
    hop_s: float = 60e-6
    link_byte_s: float = 0.0
    process_bytes: int = 64 << 20
    memory_bytes: int | None = None
    cores: int | None = None


class Session(NamedTuple):
    """What KV is sized for: positions, and how they are kept."""

    positions: int
    kv: KvOptions


class StationCost(msgspec.Struct, frozen=True):
    """One station: bytes of weights, KV at the context asked for, process; calls and compute seconds a token."""

    name: str
    roles: str
    weight_bytes: int
    kv_bytes: int
    process_bytes: int
    total_bytes: int
    calls_per_token: int
    compute_s: float


class PlanCost(msgspec.Struct, frozen=True):
    """The prediction for one session decoding; `ceiling_tok_s` is what many sessions together cannot exceed. `kv`: how
    its K and V are kept."""

    plan: str
    route: str
    context: int
    kv: dict[str, Any]
    stations: tuple[StationCost, ...]
    hops_per_token: int
    bytes_per_token: int
    compute_s: float
    token_s: float
    tok_s: float
    ceiling_tok_s: float
    busiest: str
    warnings: tuple[str, ...]


def plan_cost(
    plan: Plan,
    geometry: Geometry,
    weights: WeightSizes,
    *,
    route: str = "chain",
    context: int | None = None,
    kv: KvOptions = KvOptions(),  # noqa: B008  frozen
    machine: Machine = Machine(),  # noqa: B008  frozen
) -> PlanCost:
    """The cost of a checked plan. `context`: positions the KV is sized for, by default the model's whole context; `kv`:
    how it is kept. UnsupportedError where that contradicts the model."""
    positions = geometry.context_length if context is None else context
    longest = kv.max_positions(geometry.context_length)
    if not 1 <= positions <= longest:
        raise PlanError(f"context {positions}: the model holds 1 to {longest} positions")
    check_slices(plan, geometry.ffn_size)
    check_on_model(kv, geometry.attention.windows)
    session = Session(positions, kv)
    stations = tuple(_station_cost(plan, i, geometry, weights, session, machine) for i in range(len(plan.stations)))
    path = _token_path(plan, geometry, weights, route, machine)
    compute_s = sum(station.compute_s for station in stations)
    busiest = max(stations, key=lambda station: station.compute_s)
    return PlanCost(
        plan=plan.name,
        route=route,
        context=positions,
        kv=kv.shown(),
        stations=stations,
        hops_per_token=path.hops,
        bytes_per_token=path.bytes,
        compute_s=compute_s,
        token_s=path.seconds,
        tok_s=1 / path.seconds,
        ceiling_tok_s=min(1 / busiest.compute_s, (machine.cores or len(stations)) / compute_s),
        busiest=busiest.name,
        warnings=tuple(_warnings(plan, stations, path, geometry, weights, route, session, machine)),
    )


def call_seconds(call: Call, weights: WeightSizes, machine: Machine) -> float:
    """Compute of one call for one row. An embedding row is a copy: its fixed cost only."""
    carrier = call.carrier
    if carrier.role == "embed":
        return machine.call_s
    if carrier.role == "head":
        read = weights.head / carrier.parts
    elif carrier.role == "block":
        read = sum(weights.of_layer_role("block", layer) for layer in range(carrier.lo, carrier.hi + 1))
    else:
        read = weights.of_layer_role(carrier.role, call.layer) / carrier.parts
    return machine.call_s + read * machine.weights_byte_s


def _token_path(plan: Plan, geometry: Geometry, weights: WeightSizes, route: str, machine: Machine) -> TokenPath:
    link = Link(machine.hop_s, machine.link_byte_s)
    if route not in ("chain", "relay"):
        raise PlanError(f"route {route!r} is unknown; routes are chain and relay")
    walk = chain_path if route == "chain" else relay_path

    beside = Counter(
        (c.role, c.station, layer) for c in to_carriers(plan) if c.parts > 1 for layer in range(c.lo, c.hi + 1)
    )

    def compute(call: Call) -> float:
        """Shards and slices work side by side, as far as they have stations and cores of their own."""
        carrier = call.carrier
        together = beside[(carrier.role, carrier.station, call.layer)]
        crowding = max(1.0, together, carrier.parts / (machine.cores or math.inf))
        return call_seconds(call, weights, machine) * crowding

    return walk(plan, geometry, compute, link)


def _station_cost(
    plan: Plan, index: int, geometry: Geometry, weights: WeightSizes, session: Session, machine: Machine
) -> StationCost:
    station = plan.stations[index]
    calls = [call for call in calls_of(plan) if call.carrier.station == index]
    weight_bytes = _weight_bytes(station, weights)
    spans = (range(role.lo, role.hi + 1) for role in station.roles if role.name in ("attn", "block"))
    kv_bytes = session_bytes(session.kv, chain.from_iterable(spans), session.positions, geometry.kv_shape)
    return StationCost(
        name=station.name,
        roles=station.roles_text,
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
        process_bytes=machine.process_bytes,
        total_bytes=weight_bytes + kv_bytes + machine.process_bytes,
        calls_per_token=len(calls),
        compute_s=sum(call_seconds(call, weights, machine) for call in calls),
    )


def _weight_bytes(station: StationSpec, weights: WeightSizes) -> int:
    """Bytes of weights a station touches. A shard touches its part; equal parts of tied ends are the same bytes."""
    embeds = {(role.part, role.parts) for role in station.roles if role.name == "embed"}
    total = 0
    for role in station.roles:
        if role.name == "embed":
            total += weights.embed // role.parts
        elif role.name == "head":
            shared = weights.shared_ends if (role.part, role.parts) in embeds else 0
            total += (weights.head - shared) // role.parts
        else:
            whole = sum(weights.of_layer_role(role.name, layer) for layer in range(role.lo, role.hi + 1))
            total += whole // role.parts
    return total


def _warnings(
    plan: Plan,
    stations: Sequence[StationCost],
    path: TokenPath,
    geometry: Geometry,
    weights: WeightSizes,
    route: str,
    session: Session,
    machine: Machine,
) -> list[str]:
    found = []
    memory = machine.memory_bytes
    if memory is not None:
        for station in stations:
            if station.total_bytes > memory:
                found.append(
                    f"station {station.name} needs {_mib(station.total_bytes)}, the machine has {_mib(memory)}"
                )
    best: tuple[float, str] | None = None
    for other in _smaller_plans(plan):
        if memory is not None and any(
            _station_cost(other, i, geometry, weights, session, machine).total_bytes > memory
            for i in range(len(other.stations))
        ):
            continue
        seconds = _token_path(other, geometry, weights, route, machine).seconds
        if best is None or seconds < best[0]:
            best = (seconds, other.name)
    if best is not None and path.seconds > SLOWER_FACTOR * best[0]:
        found.append(
            f"a token takes {path.seconds / best[0]:.2f}x the time it takes with {best[1]}: "
            f"{1 / path.seconds:.1f} against {1 / best[0]:.1f} tokens/s for one session"
        )
    return found


def _smaller_plans(plan: Plan) -> list[Plan]:
    """Plans with fewer processes that could take this one's place: solo, and whole layers on fewer stations."""
    if plan.embedded:
        return []
    most = min(len(plan.stations) - 1, plan.num_layers, _MAX_ALTERNATIVES)
    names = ["solo", *(f"layers:{count}" for count in range(1, most + 1))]
    return [check(expand_preset(name, plan.num_layers)) for name in names]


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
