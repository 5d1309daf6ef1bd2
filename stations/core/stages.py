"""A route compiled for one station: for every input it may get, what to compute and where each output goes.

Made once when a route is installed, so that a pass costs one table look-up a hop. The relay (route 0) is the same
table without edges: outputs go back to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from aeonflow import bands
from aeonflow.errors import BadTensorError, PlanError
from aeonflow.frames import Flags
from aeonflow.messages import Carrier, Route
from aeonflow.route import Hop, check_pair_x, ffn_slices, is_bypassed, is_live, num_parts, successors
from aeonflow.tensors import Kind, Port

from ..models.roles import END_ROLES, SLICED_ROLE, SLICES, RoleSpan
from .addresses import address_of
from .draft_routes import (
    Seeding,
    draft_form,
    draft_hops,
    draft_rules,
    draft_seeding,
    drafts_at,
    grow_seeding,
    live_rules,
    live_seeding,
)
from .forms import DELTA, NORMED, PLAIN, SLICED, is_role, ports_of, residual_form
from .seed_routes import BYPASS, SeedEdge, SeedKey, SeedRule, relay_rules, seed_edges, seed_rules

PART_ROLES = (*END_ROLES, SLICED_ROLE)  # a station may carry several parts of one
CACHE_ROLES = frozenset({"attn", "block"})
_H, _DRAFT = int(Port.H), int(Kind.DRAFT)

StageKey = tuple[str, int, int, int, int]  # role and form, layer, hi, part, parts: what makes two jobs one batch


class Edge(NamedTuple):
    """One output edge. `url` may be HERE, delivered inside the process, no hop, or HOST (`addresses.py`)."""

    url: str
    stream: int
    layer: int
    output: int  # index into the stage's outputs
    port: int
    flags: Flags
    also: int = -1  # index of a second output that travels in the same message; -1: none


class Stage(msgspec.Struct, frozen=True):
    """One role at one layer (a block: layers `layer`..`hi`) on one route. `edges` None: answer the caller."""

    role: str
    layer: int
    hi: int
    part: int
    parts: int
    key: StageKey
    edges: tuple[Edge, ...] | None
    joined_embeds: int  # parts of x that meet at this input; 0: x comes whole
    joined_slices: int  # ffn slices whose sums meet h at this input; 0: x comes whole
    slots: int  # inputs that meet here before a pass can be computed; 1: nothing waits for anything
    place: tuple[str, int]  # role and last layer, as Whereabouts names it
    stream: int
    inputs: tuple[int, ...]  # ports, as plain numbers: the hot path compares them
    has_cache: bool
    outputs: tuple[int, ...] = ()  # ports of what is computed, in order
    form: str = ""  # which arithmetic of the role; "": the plain one
    seeds: tuple[SeedEdge, ...] = ()  # residual seeds sent with every pass
    early: tuple[SeedEdge, ...] = ()  # seeds that leave as soon as the input is whole, before anything is computed
    shadowed: int = 0  # x that arrives here is held against seeds, in slots that wait for this; 0: against none

    def slot(self, port: int, part: int) -> int:
        """Which of the inputs that meet here comes by `port` from shard or slice `part`. BadTensorError for none."""
        if self.joined_slices:
            if port == _H:
                return 0
            if part < self.joined_slices:
                return 1 + part
            raise BadTensorError(f"f of ffn slice {part}: the layer before has {self.joined_slices} slices")
        if self.joined_embeds:
            if part < self.joined_embeds:
                return part
            raise BadTensorError(f"x of embed part {part}: the route has {self.joined_embeds} parts")
        return self.inputs.index(port)


class CompiledRoute(msgspec.Struct, frozen=True):
    """The stages of one station on a route, by (stream, layer); several only for shards and slices.

    `seeded`: who takes a residual seed, by (Fano line, layer, kind). `variants`: of the relay, stages that take other
    inputs than the plain ones, by (stream, layer, port). `drafts`: stages of draft rows, which take other ways than
    canonical ones, by (stream, layer).
    """

    route: int
    stages: dict[tuple[int, int], tuple[Stage, ...]]
    names: dict[str, str]  # url → name of every successor that is another station
    kv_layers: tuple[int, ...]
    seeded: dict[SeedKey, tuple[Stage, SeedRule]] = {}
    variants: dict[tuple[int, int, int], tuple[Stage, ...]] = {}
    drafts: dict[tuple[int, int], tuple[Stage, ...]] = {}

    def takers(self, stream: int, layer: int, kind: int) -> tuple[Stage, ...] | None:
        """Who takes rows of that kind here; None where nobody does."""
        at = stream, layer
        return self.drafts.get(at) if kind == _DRAFT and self.drafts else self.stages.get(at)


def compile_local(spans: Iterable[RoleSpan], residual: str = "sequential") -> CompiledRoute:
    """The relay's table: every role the station carries, answered to the caller. A block runs whole."""
    stages: dict[tuple[int, int], tuple[Stage, ...]] = {}
    layers: set[int] = set()
    seeded: dict[SeedKey, tuple[Stage, SeedRule]] = {}
    variants: dict[tuple[int, int, int], tuple[Stage, ...]] = {}
    for span in spans:
        for layer, hi in _entries(span.role, span.lo, span.hi):
            own = RoleSpan(span.role, layer, hi, span.part, span.parts)
            rules = relay_rules(span.role, layer) if residual == "sequential" else {}
            plain = _stage(own, None, form=residual_form(span.role, residual), shadowed=_shadowed(rules))
            _add(stages, plain)
            layers.update(range(layer, hi + 1) if span.role in CACHE_ROLES else ())
            if residual != "sequential":
                continue
            if span.role == "attn":
                joined = _stage(own, None, slices=1)
                variants[bands.ATTN, layer, int(Port.F)] = (joined,)
                seeded.update({at: (joined if rule is BYPASS else plain, rule) for at, rule in rules.items()})
            elif span.role == "down":
                variants[bands.DOWN, layer, int(Port.U)] = (_stage(own, None, form=DELTA),)
    return CompiledRoute(0, stages, {}, tuple(sorted(layers)), seeded, variants)


def compile_route(
    route: Route, self_index: int, spans: Sequence[RoleSpan], num_layers: int, residual: str = "sequential"
) -> CompiledRoute:
    """The stages of station `self_index`. PlanError where the route asks for what the station does not carry, misses a
    role, or was made for another depth or residual."""
    if route.route == 0:
        raise PlanError("route 0 is the relay: a route's id is 1 or more")
    if route.num_layers != num_layers:
        raise PlanError(f"route {route.route} has {route.num_layers} layers, the model has {num_layers}")
    if route.residual != residual:
        raise PlanError(f"route {route.route} is for a {route.residual} residual, the model's is {residual}")
    if not 0 <= self_index < len(route.stations):
        raise PlanError(f"route {route.route}: station index {self_index}, it has {len(route.stations)} stations")
    own = [c for c in route.carriers if c.station == self_index]
    for carrier in route.carriers:
        _check_carrier(route, carrier)
    check_pair_x(route)
    for carrier in own:
        _check_carried(carrier, spans)
    stages: dict[tuple[int, int], tuple[Stage, ...]] = {}
    drafts: dict[tuple[int, int], tuple[Stage, ...]] = {}
    layers: set[int] = set()
    seeded: dict[SeedKey, tuple[Stage, SeedRule]] = {}
    for c in own:
        for layer, hi in _entries(c.role, c.lo, c.hi):
            stage, rules = _canonical_stage(route, self_index, c, layer, hi)
            _add(stages, stage)
            seeded.update({at: (stage, rule) for at, rule in rules.items()})
            layers.update(range(layer, hi + 1) if c.role in CACHE_ROLES else ())
            if drafts_at(route, c.role, layer):
                draft = _draft_stage(route, self_index, c, layer)
                _add(drafts, draft)
                seeded.update({at: (draft, rule) for at, rule in draft_rules(c.role, layer).items()})
    used = [stage for row in (*stages.values(), *drafts.values()) for stage in row]
    urls = {edge.url for stage in used for edge in stage.edges or () if edge.url}
    urls.update(edge.url for stage in used for edge in (*stage.seeds, *stage.early) if edge.url)
    names = {station.url: station.name for station in route.stations if station.url in urls}
    return CompiledRoute(route.route, stages, names, tuple(sorted(layers)), seeded, drafts=drafts)


def _canonical_stage(
    route: Route, self_index: int, c: Carrier, layer: int, hi: int
) -> tuple[Stage, dict[SeedKey, SeedRule]]:
    """The stage of `c` at `layer`..`hi`, and the seeds that it takes."""
    parts = num_parts(route, "embed")
    joined = parts if parts > 1 and layer == 0 and c.role in CACHE_ROLES else 0
    below = route.num_layers - 1 if c.role == "head" else layer - 1
    slices = len(ffn_slices(route, below)) if c.role in CACHE_ROLES or c.role == "head" else 0
    if c.role == "attn" and is_bypassed(route, layer):
        slices = 1  # the whole ffn, as one slice: x = h + f, and h comes as a seed
    form = _form_of(route, c.role, layer)
    rules = {**seed_rules(route, c, layer), **live_rules(route, c.role, layer)}
    live, grow = live_seeding(route, self_index, c.role, hi), grow_seeding(route, self_index, c.role, hi)
    stage = _stage(
        RoleSpan(c.role, layer, hi, c.part, c.parts),
        _edges(route, self_index, c, successors(route, c.role, hi), ports_of(c.role, form, layer).outputs),
        joined,
        slices,
        form=form,
        seeding=Seeding((*seed_edges(route, self_index, c, hi), *live.seeds, *grow.seeds), live.early),
        shadowed=_shadowed(rules),
    )
    return stage, rules


def _draft_stage(route: Route, self_index: int, c: Carrier, layer: int) -> Stage:
    form = draft_form(c.role)
    return _stage(
        RoleSpan(c.role, layer, layer, c.part, c.parts),
        _edges(route, self_index, c, draft_hops(route, c.role, layer), ports_of(c.role, form, layer).outputs),
        form=form,
        seeding=draft_seeding(route, self_index, c.role, layer),
        is_draft=True,
    )


def _form_of(route: Route, role: str, layer: int) -> str:
    """The form of a canonical stage that starts at `layer`."""
    if role == "down" and is_bypassed(route, layer + 1):
        return DELTA
    if is_live(route, layer):
        if role == "attn" and route.residual != "parallel":
            return DELTA
        if role == "gate_up":
            return NORMED
    return residual_form(role, route.residual)


def _entries(role: str, lo: int, hi: int) -> list[tuple[int, int]]:
    """(entry layer, last layer) of every call a span takes: one for a block and for the ends, else one a layer."""
    if role in END_ROLES:
        return [(0, 0)]
    return [(lo, hi)] if role == "block" else [(layer, layer) for layer in range(lo, hi + 1)]


def _shadowed(rules: Mapping[SeedKey, SeedRule]) -> int:
    """What the slots wait for in which x is held against a seed; 0 where there are none."""
    return next((rule.expected for rule in rules.values() if rule.mode == "shadow"), 0)


def _stage(
    span: RoleSpan,
    edges: tuple[Edge, ...] | None,
    embeds: int = 0,
    slices: int = 0,
    *,
    form: str = PLAIN,
    seeding: Seeding = Seeding(),  # noqa: B008 — frozen
    shadowed: int = 0,
    is_draft: bool = False,
) -> Stage:
    role = span.role
    ports = ports_of(role, form, span.lo)
    inputs = SLICED if slices else ports.inputs
    name = " ".join(filter(None, (role, form, "of drafts" if is_draft else "")))
    return Stage(
        role=role,
        layer=span.lo,
        hi=span.hi,
        part=span.part,
        parts=span.parts,
        key=(name, span.lo, span.hi, span.part, span.parts),
        edges=edges,
        joined_embeds=embeds,
        joined_slices=slices,
        slots=1 + slices if slices else embeds or len(inputs),
        place=(role, span.hi),
        stream=bands.ROLE_STREAMS[role],
        inputs=tuple(map(int, inputs)),
        has_cache=role in CACHE_ROLES,
        outputs=tuple(map(int, ports.outputs)),
        form=form,
        seeds=seeding.seeds,
        early=seeding.early,
        shadowed=shadowed,
    )


def _add(stages: dict[tuple[int, int], tuple[Stage, ...]], stage: Stage) -> None:
    at = (stage.stream, stage.layer)
    before = stages.get(at, ())
    is_twice = stage.role == SLICED_ROLE and any(stage.part == other.part for other in before)
    if is_twice or (before and stage.role not in PART_ROLES):
        raise PlanError(f"{stage.role} of layer {stage.layer} is carried twice by one station")
    stages[at] = (*before, stage)


def _edges(
    route: Route, self_index: int, carrier: Carrier, hops: Iterable[Hop], outputs: tuple[Port, ...]
) -> tuple[Edge, ...]:
    """Edges for `hops`; two outputs for one place, as h and u of a seeded pass, go in one message.

    To a host that sends it on to several an output goes once.
    """
    hops = list(dict.fromkeys(hops))  # two parts on one station are one hop
    edges: dict[tuple[str, int, int], Edge] = {}
    for hop in hops:
        output = outputs.index(hop.port)
        url = address_of(route, self_index, hop.station)
        place = url, hop.stream, hop.layer
        if place in edges:
            if edges[place].output != output:
                edges[place] = edges[place]._replace(also=output)
            continue
        flags = Flags.FIN
        if carrier.parts > 1:
            flags |= Flags.FOLD
        if sum(other.port == hop.port for other in hops) > 1:
            flags |= Flags.FORK
        edges[place] = Edge(url, hop.stream, hop.layer, output, hop.port, flags)
    return tuple(edges.values())


def _check_carrier(route: Route, c: Carrier) -> None:
    if not is_role(c.role):
        raise PlanError(f"route {route.route}: role {c.role!r} has no place in a chain")
    if not 0 <= c.station < len(route.stations):
        raise PlanError(f"route {route.route}: {c.role} on station {c.station} of {len(route.stations)}")
    if not 0 <= c.lo <= c.hi < max(route.num_layers, 1):
        raise PlanError(f"route {route.route}: {c.role} of layers {c.lo}-{c.hi}, the model has {route.num_layers}")
    if not 0 <= c.part < c.parts:
        raise PlanError(f"route {route.route}: {c.role} part {c.part} of {c.parts}")
    if c.role == SLICED_ROLE and c.parts not in SLICES:
        raise PlanError(f"route {route.route}: {c.parts} ffn slices, {', '.join(map(str, SLICES))} are possible")


def _check_carried(c: Carrier, spans: Sequence[RoleSpan]) -> None:
    for span in spans:
        if span.role != c.role:
            continue
        if c.role in END_ROLES:
            if (span.part, span.parts) == (c.part, c.parts) or span.parts == 1:
                return
        elif span.lo <= c.lo and c.hi <= span.hi and (span.part, span.parts) == (c.part, c.parts):
            return
    asked = RoleSpan(c.role, c.lo, c.hi, c.part, c.parts)
    raise PlanError(f"the route asks for {asked}, this station carries {', '.join(map(str, spans))}")
