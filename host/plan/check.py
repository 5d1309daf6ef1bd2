"""The check of a plan before anything starts: every role of every layer exactly once, nothing outside the model.

Errors name the station, what is missing or doubled, and what is allowed.
"""

from __future__ import annotations

import re
from collections import defaultdict

from aeonflow.errors import PlanError

from .plan import Plan, StationSpec
from .roles import GRAMMAR, SHARDED_ROLES, Role, require_runnable

TRISPLIT_ROLES = ("attn", "gate_up", "down")
BLOCK_COLS = 32  # weights are cut between blocks of so many columns
MAX_STATIONS = 4096  # a route is one control message; larger fleets would not fit beside the limits of a hello
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_A_LAYER = "a block, or attn and either gate_up and down or every ffn slice"
_MAX_NAMED = 4  # items listed in one error before "and N more"


def check(plan: Plan) -> Plan:
    """`plan` itself, when it can run. PlanError for a fault, UnsupportedError for a role that is not built yet."""
    if plan.num_layers < 1:
        raise PlanError(f"a model of {plan.num_layers} layers: at least 1 is needed")
    if not 1 <= len(plan.stations) <= MAX_STATIONS:
        raise PlanError(f"plan {plan.name!r} has {len(plan.stations)} stations: 1 to {MAX_STATIONS} are allowed")
    _check_names(plan)
    for station in plan.stations:
        _check_station(station, plan.num_layers)
    _check_layers(plan)
    for role in SHARDED_ROLES:
        _check_shards(plan, role)
    return plan


def _check_names(plan: Plan) -> None:
    seen: set[str] = set()
    for station in plan.stations:
        if not _NAME.fullmatch(station.name):
            raise PlanError(
                f"station name {station.name!r}: letters, digits, '_', '.' and '-' are allowed, 1 to 64 of them"
            )
        if station.name in seen:
            raise PlanError(f"two stations are called {station.name!r}; names must be unique")
        seen.add(station.name)


def _check_station(station: StationSpec, num_layers: int) -> None:
    if not station.roles:
        raise PlanError(f"station {station.name} has no role; roles are {GRAMMAR}")
    for role in station.roles:
        require_runnable(role, f"station {station.name}")
        if role.hi >= num_layers:
            raise PlanError(
                f"station {station.name}: {role} is outside the model, whose layers are 0 to {num_layers - 1}"
            )


def _check_layers(plan: Plan) -> None:
    """Each layer is a block's, or has attn and, for its ffn, gate_up and down or all slices; each of those once."""
    owners: dict[str, list[list[str]]] = defaultdict(lambda: [[] for _ in range(plan.num_layers)])
    for station in plan.stations:
        for role in station.roles:
            if role.name in SHARDED_ROLES or role.name == "ffn":
                continue
            for layer in range(role.lo, role.hi + 1):
                owners[role.name][layer].append(station.name)
    for name, per_layer in owners.items():
        doubled = [(layer, names) for layer, names in enumerate(per_layer) if len(names) > 1]
        if doubled:
            layer, names = doubled[0]
            raise PlanError(
                f"{name} of layer{_listed([d[0] for d in doubled])} is carried more than once: "
                f"layer {layer} by {_listed(names)}; every role of every layer has exactly one station"
            )
    missing: dict[str, list[int]] = defaultdict(list)
    slices = _ffn_slices(plan)
    for layer in range(plan.num_layers):
        block, cut = owners["block"][layer], slices[layer]
        split = {name: owners[name][layer] for name in TRISPLIT_ROLES}
        if cut:
            _check_sliced(layer, cut, {"block": block, "gate_up": split.pop("gate_up"), "down": split.pop("down")})
            parts = next(iter(cut)).parts
            for absent in sorted(set(range(parts)) - {role.part for role in cut}):
                missing[f"ffn slice {absent}/{parts}"].append(layer)
        if block and any(split.values()):
            name = next(name for name, names in split.items() if names)
            raise PlanError(
                f"layer {layer} is carried whole by {block[0]} (block) and in part by {split[name][0]} ({name}): "
                "a layer is either a block's or split over attn, gate_up and down"
            )
        if not block and not cut and not any(split.values()):
            missing["block (or attn, gate_up and down)"].append(layer)
        elif not block:
            for name, names in split.items():
                if not names:
                    missing[name].append(layer)
    if missing:
        found = "; ".join(f"{name} of layer{_listed(layers)}" for name, layers in missing.items())
        raise PlanError(f"plan {plan.name!r} is incomplete, no station carries {found}; each layer needs {_A_LAYER}")


def _ffn_slices(plan: Plan) -> list[dict[Role, list[str]]]:
    """For each layer the slices of its ffn (roles without their layers) and who carries them."""
    slices: list[dict[Role, list[str]]] = [{} for _ in range(plan.num_layers)]
    for station in plan.stations:
        for role in station.roles:
            if role.name == "ffn":
                for layer in range(role.lo, role.hi + 1):
                    slices[layer].setdefault(Role("ffn", part=role.part, parts=role.parts), []).append(station.name)
    return slices


def _check_sliced(layer: int, cut: dict[Role, list[str]], others: dict[str, list[str]]) -> None:
    """A layer whose ffn is cut into slices: one number of slices, each once, and nobody else computes its ffn."""
    owner = next(iter(cut.values()))[0]
    for name, names in others.items():
        if names:
            raise PlanError(
                f"layer {layer} has ffn slices ({owner}) and {name} ({names[0]}): the ffn of a layer is cut into "
                "slices, or split over gate_up and down, or part of a block"
            )
    counts = {role.parts: names[0] for role, names in cut.items()}
    if len(counts) > 1:
        said = ", ".join(f"{name} says {parts}" for parts, name in sorted(counts.items()))
        raise PlanError(f"the ffn slices of layer {layer} disagree on their number: {said}")
    for role, names in cut.items():
        if len(names) > 1:
            raise PlanError(
                f"ffn slice {role.part}/{role.parts} of layer {layer} is carried twice: by {_listed(names)}"
            )


def check_slices(plan: Plan, ffn_size: int) -> None:
    """PlanError when the ffn is too narrow for the slices of the plan: each holds a whole block of columns at least."""
    blocks = -(-ffn_size // BLOCK_COLS)
    for station in plan.stations:
        for role in station.roles:
            if role.name == "ffn" and role.parts > blocks:
                raise PlanError(
                    f"station {station.name}: {role} cuts the ffn into {role.parts} slices, its {ffn_size} columns "
                    f"are {blocks} blocks of {BLOCK_COLS}: at most {blocks} slices"
                )


def _check_shards(plan: Plan, name: str) -> None:
    holders: dict[int, list[str]] = defaultdict(list)
    counts: dict[int, str] = {}
    for station in plan.stations:
        for role in station.roles:
            if role.name == name:
                holders[role.part].append(station.name)
                counts.setdefault(role.parts, station.name)
    if not holders:
        raise PlanError(f"plan {plan.name!r} has no {name}: one station, or every part {name}:i/n, is needed")
    if len(counts) > 1:
        said = ", ".join(f"{station} says n={parts}" for parts, station in sorted(counts.items()))
        raise PlanError(f"the {name} shards disagree on their number: {said}")
    (parts,) = counts
    doubled = [part for part, names in sorted(holders.items()) if len(names) > 1]
    if doubled:
        raise PlanError(f"{name} part {doubled[0]}/{parts} is carried twice: by {_listed(holders[doubled[0]])}")
    absent = [part for part in range(parts) if part not in holders]
    if absent:
        raise PlanError(f"{name} is incomplete: part{_listed(absent)} of {parts} missing")


def _listed(items: list[int] | list[str]) -> str:
    """A short list for an error; consecutive numbers become a range, long lists are cut with their count."""
    if items and all(isinstance(item, int) for item in items):
        texts = _ranges([int(item) for item in items])
        prefix = "s " if len(items) > 1 else " "
    else:
        texts, prefix = [str(item) for item in items], ""
    more = len(texts) - _MAX_NAMED
    shown = ", ".join(texts[:_MAX_NAMED])
    return prefix + (f"{shown} and {more} more" if more > 0 else shown)


def _ranges(numbers: list[int]) -> list[str]:
    texts: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        texts.append(str(start) if start == previous else f"{start}-{previous}")
        if number is not None:
            start = previous = number
    return texts
