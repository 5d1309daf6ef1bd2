"""What pictures of a cell are drawn from: stations as lanes, computations as boxes, messages as lines between lanes.

Times are microseconds from the departure of the first pass shown. Plain lists of numbers, since a page holds thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from aeonflow.bands import RECEIVERS
from aeonflow.messages import TraceEvent
from aeonflow.tensors import Port
from aeonflow.trace import What

from ..trace import Recording

T = TypeVar("T", "Box", "Line")

ROLES = ("host", "embed", "attn", "gate_up", "down", "ffn", "block", "head")
ROLE_OF_STREAM = {stream: ROLES.index(role) for stream, role in RECEIVERS.items()}


class Lane(msgspec.Struct, frozen=True):
    """One process: the host or a station."""

    name: str
    roles: str


class Box(msgspec.Struct, frozen=True, array_like=True):
    """A kernel call for one pass, or at the host the choice of a token. `hi`: the last layer of a block."""

    lane: int
    role: int
    layer: int
    hi: int
    kind: int
    position: int
    rows: int
    part: int
    at_us: float
    took_us: float
    waited_us: float


class Line(msgspec.Struct, frozen=True, array_like=True):
    """A message: written at `at_us` in one lane, its handling begun `took_us` later in another. `role`: whose input."""

    lane: int
    to_lane: int
    role: int
    layer: int
    kind: int
    position: int
    port: str
    num_bytes: int
    at_us: float
    took_us: float


class Timeline(msgspec.Struct, frozen=True):
    """A stretch of a recording. `tokens`: (position, when it was chosen); `end_us`: of the last box or line."""

    lanes: tuple[Lane, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    tokens: tuple[tuple[int, float], ...]
    end_us: float

    def to_json(self) -> dict[str, Any]:
        """Plain lists, in the order of the fields of `Box` and `Line`."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def timeline_of(recording: Recording, first: int, num_positions: int) -> Timeline:
    """The passes whose first row is one of `num_positions` from `first` on, drafts of them included."""
    end = first + num_positions

    def is_shown(event: TraceEvent) -> bool:
        return first <= event.first < end

    departures = [e.began_s for e in recording.tracks[0].events if e.what == What.WAIT and is_shown(e)]
    origin_s = min(departures, default=recording.began_s)

    def us(seconds: float) -> float:
        return round(1e6 * seconds, 1)

    boxes = []
    for lane, track in enumerate(recording.tracks):
        for event in track.events:
            if not is_shown(event) or event.what not in (What.COMPUTE, What.SAMPLE):
                continue
            role = ROLE_OF_STREAM[event.stream] if event.what == What.COMPUTE else 0
            waited_s = max(0.0, event.began_s - event.queued_s) if event.what == What.COMPUTE else 0.0
            at_us, took_us = us(event.began_s - origin_s), us(event.ended_s - event.began_s)
            where = (event.layer, event.hi, event.kind, event.first, event.rows, event.part)
            boxes.append(Box(lane, role, *where, at_us, took_us, us(waited_s)))
    lines = _lines(recording, origin_s, first, end)
    tokens = tuple(
        (e.first, us(e.ended_s - origin_s)) for e in recording.tracks[0].events if e.what == What.SAMPLE and is_shown(e)
    )
    ends = [box.at_us + box.took_us for box in boxes] + [line.at_us + line.took_us for line in lines]
    lanes = tuple(Lane(track.name, ", ".join(track.roles)) for track in recording.tracks)
    return Timeline(lanes, _in_time(boxes), _in_time(lines), tokens, max(ends, default=0.0))


def _lines(recording: Recording, origin_s: float, first: int, end: int) -> list[Line]:
    lane_of = {id(event): lane for lane, track in enumerate(recording.tracks) for event in track.events}
    lines = []
    for message in recording.messages():
        sent, received = message
        if not first <= sent.first < end:
            continue
        to_lane = lane_of[id(received)]
        lines.append(
            Line(
                lane_of[id(sent)],
                to_lane,
                ROLE_OF_STREAM[sent.stream] if to_lane else 0,
                sent.layer,
                sent.kind,
                sent.first,
                Port(sent.port).name.lower(),
                sent.num_bytes,
                round(1e6 * (sent.ended_s - origin_s), 1),
                round(1e6 * message.wire_s, 1),
            )
        )
    return lines


def _in_time(items: Sequence[T]) -> tuple[T, ...]:
    return tuple(sorted(items, key=lambda item: item.at_us))
