"""Named plans: `solo`, `layers:N`, `trisplit`, `trisplit:per-layer`, `ffslice:K`, with suffixes such as `+shards=8`.

A preset is resolved against the model's depth; the result is an ordinary plan, checked like any other.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from aeonflow.errors import PlanError, UnsupportedError

from .plan import Plan, StationSpec
from .roles import FFN_SLICES, MAX_SHARDS, Role

PRESETS = "solo, layers:N, trisplit, trisplit:per-layer, ffslice:K"
SUFFIXES = "+shards=N, +embed-shards=N, +head-shards=N"
_LATER_SUFFIXES = ("spares", "wardens")


class Suffixes(msgspec.Struct, frozen=True):
    """What follows a preset's name: shards of the ends."""

    embed_shards: int = 1
    head_shards: int = 1


def expand_preset(text: str, num_layers: int) -> Plan:
    """The plan a preset names. PlanError for an unknown one, UnsupportedError for one that is not built yet."""
    base, *suffix_texts = text.strip().split("+")
    suffixes = _parse_suffixes(text, suffix_texts)
    kind, _, argument = base.partition(":")
    if kind == "solo" and not argument:
        return _solo(text, num_layers, suffixes)
    if kind == "layers" and argument:
        return _layers(text, num_layers, _count(text, argument, "processes", num_layers), suffixes)
    if base == "trisplit":
        return Plan(text, num_layers, (*_trisplit(num_layers), *_ends(suffixes)))
    if base == "trisplit:per-layer":
        return Plan(text, num_layers, (*_per_layer(num_layers), *_ends(suffixes)))
    if kind == "ffslice" and argument:
        return Plan(text, num_layers, (*_ffslice(text, num_layers, argument), *_ends(suffixes)))
    raise PlanError(f"plan {text!r} is neither a preset ({PRESETS}; suffixes {SUFFIXES}) nor a .toml file")


def _solo(text: str, num_layers: int, suffixes: Suffixes) -> Plan:
    """One station with every role, in the host's process; with sharded ends (shards of one station) in its own."""
    roles = (
        *_parts("embed", suffixes.embed_shards),
        Role("block", 0, num_layers - 1),
        *_parts("head", suffixes.head_shards),
    )
    return Plan(text, num_layers, (StationSpec("solo", roles),), embedded=suffixes == Suffixes())


def _parts(name: str, parts: int) -> tuple[Role, ...]:
    return tuple(Role(name, part=part, parts=parts) for part in range(parts))


def _layers(text: str, num_layers: int, count: int, suffixes: Suffixes) -> Plan:
    """`count` stations of whole layers; embed lives with the first and head with the last, unless sharded."""
    bounds = [num_layers * i // count for i in range(count + 1)]
    width = len(str(count - 1))
    stations = []
    for i, (lo, end) in enumerate(pairwise(bounds)):
        roles = [Role("block", lo, end - 1)]
        if i == 0 and suffixes.embed_shards == 1:
            roles.insert(0, Role("embed"))
        if i == count - 1 and suffixes.head_shards == 1:
            roles.append(Role("head"))
        stations.append(StationSpec(f"layers-{i:0{width}d}", tuple(roles)))
    ends = _ends(suffixes, with_embed=suffixes.embed_shards > 1, with_head=suffixes.head_shards > 1)
    return Plan(text, num_layers, (*stations, *ends))


def _trisplit(num_layers: int) -> tuple[StationSpec, ...]:
    last = num_layers - 1
    return tuple(StationSpec(name, (Role(name, 0, last),)) for name in ("attn", "gate_up", "down"))


def _per_layer(num_layers: int) -> tuple[StationSpec, ...]:
    width = len(str(num_layers - 1))
    return tuple(
        StationSpec(f"{name}-{layer:0{width}d}", (Role(name, layer, layer),))
        for layer in range(num_layers)
        for name in ("attn", "gate_up", "down")
    )


def _ffslice(text: str, num_layers: int, argument: str) -> tuple[StationSpec, ...]:
    """attn, and K stations that each hold a slice of every layer's ffn."""
    allowed = {str(slices): slices for slices in FFN_SLICES}
    if argument not in allowed:
        raise PlanError(f"plan {text!r}: {argument!r} ffn slices; {', '.join(allowed)} are possible")
    last, slices = num_layers - 1, allowed[argument]
    stations = [StationSpec(f"ffn-{part}", (Role("ffn", 0, last, part, slices),)) for part in range(slices)]
    return (StationSpec("attn", (Role("attn", 0, last),)), *stations)


def _ends(suffixes: Suffixes, with_embed: bool = True, with_head: bool = True) -> tuple[StationSpec, ...]:
    """Stations of the two ends: station i holds embed part i and head part i, as far as there are such parts."""
    embed_parts = suffixes.embed_shards if with_embed else 0
    head_parts = suffixes.head_shards if with_head else 0
    count = max(embed_parts, head_parts)
    stations = []
    for i in range(count):
        roles = []
        if i < embed_parts:
            roles.append(Role("embed", part=i, parts=embed_parts))
        if i < head_parts:
            roles.append(Role("head", part=i, parts=head_parts))
        name = "ends" if count == 1 else f"ends-{i:0{len(str(count - 1))}d}"
        stations.append(StationSpec(name, tuple(roles)))
    return tuple(stations)


def _parse_suffixes(text: str, suffix_texts: list[str]) -> Suffixes:
    values: dict[str, int] = {}
    for suffix in suffix_texts:
        key, _, value = suffix.partition("=")
        if key in _LATER_SUFFIXES:
            raise UnsupportedError(f"plan {text!r}: {key} are not supported yet; supported are {PRESETS}, {SUFFIXES}")
        if key == "shards":
            shards = _count(text, value, "shards", MAX_SHARDS)
            new = {"embed_shards": shards, "head_shards": shards}
        elif key in ("embed-shards", "head-shards"):
            new = {key.replace("-", "_"): _count(text, value, key, MAX_SHARDS)}
        else:
            raise PlanError(f"plan {text!r}: suffix +{suffix} is unknown; suffixes are {SUFFIXES}")
        repeated = values.keys() & new.keys()
        if repeated:
            raise PlanError(f"plan {text!r} gives {', '.join(sorted(repeated))} more than once")
        values |= new
    return Suffixes(**values)


def _count(text: str, value: str, what: str, most: int) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) <= most:
        raise PlanError(f"plan {text!r}: {what} {value!r}: a number from 1 to {most} is needed")
    return int(value)
