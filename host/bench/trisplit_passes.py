"""The passes of a recording as chains of hops: what lies between the ends of two computations that follow each other.

A stage is one role at one layer, all its parts together. The hop into a stage lasts from the end of the stage before
to the end of its own computation; the first begins when the host lets the pass go, the last ends when the host has the
answer. So the hops of a pass add up to the pass, on a chain and on a relay (where one hop is two crossings). Where
stages of a pass overlap (Pair X `live`), the hops are those of its longest path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from aeonflow.bands import HEAD, STREAM_ROLES
from aeonflow.messages import TraceEvent
from aeonflow.tensors import Kind
from aeonflow.trace import What

from ..trace import Recording

HOST = "host"
_IN_LAYER = {"attn": 0, "block": 0, "gate_up": 1, "ffn": 1, "down": 2}
LAYER_ENDS = ("down", "ffn", "block")


class Stage(msgspec.Struct):
    """A role at a layer in one pass. Parts run side by side: `began_s` of the first, `ended_s` of the last.

    `compute_s` is the longest part's. `hi`: the last layer of a block.
    """

    role: str
    layer: int
    hi: int
    began_s: float
    ended_s: float
    compute_s: float
    queue_s: float

    @property
    def order(self) -> tuple[int, int, int]:
        if self.role in ("embed", "head"):
            return (0 if self.role == "embed" else 2, 0, 0)
        return (1, self.layer, _IN_LAYER[self.role])


class Hop(msgspec.Struct, frozen=True):
    """From the end of one stage to the end of the next, `role` at `layer` (host: the answer). Seconds."""

    role: str
    layer: int
    seconds: float
    compute_s: float
    queue_s: float


class Pass(msgspec.Struct, frozen=True):
    """Rows `first`… that went through all stages once; `stages` in the order of the model."""

    kind: int
    first: int
    rows: int
    began_s: float
    ended_s: float
    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s

    @property
    def path(self) -> list[Stage]:
        """The stages that followed each other: all of them, or from the head back always, of those before in the model,
        the one that ended last before the other began."""
        stages = self.stages
        if all(a.ended_s <= b.ended_s for a, b in pairwise(stages)):
            return list(stages)
        index = len(stages) - 1
        path = [stages[index]]
        while before := [i for i in range(index) if stages[i].ended_s <= stages[index].began_s]:
            index = max(before, key=lambda i: stages[i].ended_s)
            path.append(stages[index])
        return path[::-1]

    @property
    def hops(self) -> Iterator[Hop]:
        before_s = self.began_s
        for stage in self.path:
            yield Hop(stage.role, stage.layer, stage.ended_s - before_s, stage.compute_s, stage.queue_s)
            before_s = stage.ended_s
        yield Hop(HOST, 0, self.ended_s - before_s, 0.0, 0.0)

    @property
    def layers(self) -> Iterator[tuple[int, float]]:
        """(layer, seconds from the end of the layer before to its own end) where stations end at single layers."""
        before_s: float | None = None
        for stage in self.stages:
            if stage.role == "embed":
                before_s = stage.ended_s
            elif stage.role in LAYER_ENDS and before_s is not None:
                if stage.layer == stage.hi:
                    yield stage.layer, stage.ended_s - before_s
                before_s = stage.ended_s


Wanted = Callable[[TraceEvent], bool]


def passes_of(recording: Recording, wanted: Wanted) -> list[Pass]:
    """The answered canonical passes for which `wanted` holds, in the order of their departure.

    A pass that a station did not compute once at each of its stages (its events were overwritten, or an epoch ended it)
    is left out.
    """
    computed = stages_by_pass(recording)
    found = []
    for wait in recording.tracks[0].events:
        if wait.what != What.WAIT or not wanted(wait):
            continue
        stages = computed.get((wait.session, wait.epoch, wait.first, wait.rows, Kind.CANONICAL), {})
        ordered = tuple(sorted(stages.values(), key=lambda stage: stage.order))
        if ordered and ordered[0].role == "embed" and ordered[-1].role == "head":
            found.append(Pass(Kind.CANONICAL, wait.first, wait.rows, wait.began_s, wait.ended_s, ordered))
    found.sort(key=lambda one: one.began_s)
    whole = max((len(one.stages) for one in found), default=0)
    return [one for one in found if len(one.stages) == whole]


Key = tuple[int, int, int, int, int]  # session, epoch, first, rows, kind


def stages_by_pass(recording: Recording) -> dict[Key, dict[tuple[str, int], Stage]]:
    """Every computation of the recording: by pass, then by role and layer."""
    found: dict[Key, dict[tuple[str, int], Stage]] = defaultdict(dict)
    for track in recording.stations:
        for event in track.events:
            if event.what == What.COMPUTE:
                key = (event.session, event.epoch, event.first, event.rows, event.kind)
                _add(found[key], event)
    return found


def _add(stages: dict[tuple[str, int], Stage], event: TraceEvent) -> None:
    role = STREAM_ROLES[event.stream]
    seconds, queue_s = event.ended_s - event.began_s, max(0.0, event.began_s - event.queued_s)
    known = stages.get((role, event.layer))
    if known is None:
        stages[(role, event.layer)] = Stage(role, event.layer, event.hi, event.began_s, event.ended_s, seconds, queue_s)
        return
    known.began_s = min(known.began_s, event.began_s)
    known.ended_s = max(known.ended_s, event.ended_s)
    known.compute_s = max(known.compute_s, seconds)
    known.queue_s = max(known.queue_s, queue_s)


def overlap_saves(recording: Recording, wanted: Wanted) -> list[float]:
    """Seconds by which attention of a layer began before the layer below had ended, for every row and layer.

    The end of layer l (of the canonical pass) minus the first beginning of attention at layer l + 1 for the same row
    of the same epoch, by whatever kind of pass: below zero, a wait, where each layer waits for the one before; above
    zero where a seeded pass ran ahead.
    """
    ends: dict[tuple[int, int, int, int], float] = {}
    begins: dict[tuple[int, int, int, int], float] = {}
    for (session, epoch, first, _, kind), stages in stages_by_pass(recording).items():
        for (role, layer), stage in stages.items():
            if role in ("down", "ffn") and kind == Kind.CANONICAL:
                at = (session, epoch, first, layer + 1)
                ends[at] = max(ends.get(at, stage.ended_s), stage.ended_s)
            elif role == "attn":
                at = (session, epoch, first, layer)
                begins[at] = min(begins.get(at, stage.began_s), stage.began_s)
    decoded = {(event.session, event.epoch, event.first) for event in recording.tracks[0].events if wanted(event)}
    return [end_s - begins[at] for at, end_s in ends.items() if at in begins and at[:3] in decoded]


def draft_trips(recording: Recording, wanted: Wanted) -> list[float]:
    """Seconds from the departure of a pass to the guess that grew from it, where one came (Pair X `draft`).

    The guess is the last message to the host on the head's stream: on a relay the head's input comes by before.
    """
    host = recording.tracks[0].events
    departed = {(e.session, e.epoch, e.first + e.rows): e.began_s for e in host if e.what == What.WAIT and wanted(e)}
    guesses = (e for e in host if e.what == What.RECEIVE and e.kind == Kind.DRAFT and e.stream == HEAD)
    guessed = {(e.session, e.epoch, e.first + e.rows): e.began_s for e in guesses}
    return [guessed_s - departed[at] for at, guessed_s in guessed.items() if at in departed]
