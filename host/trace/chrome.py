"""A recording as a trace of the Trace Event Format, which Perfetto and chrome://tracing open.

A process a station and one for the host; in each, lanes for what it does: receive, queue, compute, send; on the host
also sample and wait. What overlaps within a kind goes to a second lane, so that spans of a lane never cross. Arrows
connect a message's send with its receipt.

Format: "Trace Event Format" (Google, 2016): complete events X, metadata M, flows s and f; times in microseconds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aeonflow.bands import RECEIVERS
from aeonflow.frames import Flags
from aeonflow.messages import TraceEvent
from aeonflow.tensors import Kind, Port
from aeonflow.trace import What

from .recording import Message, Recording, Track

LANES = ("wait", "sample", "receive", "queue", "compute", "send")
MAX_LANES_A_KIND = 100  # thread ids of a kind: its number times this, and on
_LANE_OF = {What.RECEIVE: "receive", What.SEND: "send", What.SAMPLE: "sample", What.WAIT: "wait"}


class Span(NamedTuple):
    """A box of the picture. `events`: what it was made of."""

    lane: str
    began_s: float
    ended_s: float
    name: str
    args: dict[str, Any]
    events: tuple[TraceEvent, ...]


def chrome_trace(recording: Recording, about: dict[str, Any] | None = None) -> dict[str, Any]:
    """The whole trace as one JSON object; `about` is added to its `otherData`."""
    origin_s = recording.began_s
    events: list[dict[str, Any]] = []
    lane_of: dict[int, tuple[int, int]] = {}  # id of an event → process, lane
    for pid, track in enumerate(recording.tracks):
        events += _names(pid, track)
        lanes_used: dict[int, str] = {}
        for span, tid, lane_name in _in_lanes(_spans(track)):
            lanes_used[tid] = lane_name
            events.append(_complete(span, pid, tid, origin_s))
            for event in span.events:
                lane_of[id(event)] = (pid, tid)
        for tid, lane_name in sorted(lanes_used.items()):
            events.append(_metadata("thread_name", pid, tid, {"name": lane_name}))
            events.append(_metadata("thread_sort_index", pid, tid, {"sort_index": tid}))
    for number, message in enumerate(recording.messages(), 1):
        events += _flow(number, message, lane_of, origin_s)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            **(about or {}),
            "seconds": round(recording.ended_s - recording.began_s, 6),
            "processes": [_about(track) for track in recording.tracks],
        },
    }


def write_chrome_trace(recording: Recording, path: Path, about: dict[str, Any] | None = None) -> None:
    """Write the trace. Raises OSError where the file cannot be written."""
    path.write_text(json.dumps(chrome_trace(recording, about), separators=(",", ":"), ensure_ascii=False))


def _spans(track: Track) -> Iterator[Span]:
    """The boxes of a process. Passes that shared a kernel call share its box; each waited on its own."""
    batches: dict[int, list[TraceEvent]] = defaultdict(list)
    for event in track.events:
        if event.what == What.COMPUTE:
            batches[event.batch].append(event)
            if event.queued_s < event.began_s:
                yield Span("queue", event.queued_s, event.began_s, f"{_place(event)} waits", _pass(event), (event,))
        else:
            yield Span(_LANE_OF[What(event.what)], event.began_s, event.ended_s, _name(event), _args(event), (event,))
    for shared in batches.values():
        first = shared[0]
        args = {
            "role": RECEIVERS[first.stream],
            "layer": first.layer,
            "rows": sum(event.rows for event in shared),
            "passes": [_pass(event) for event in shared],
        }
        if first.hi != first.layer:
            args["last_layer"] = first.hi
        if first.part:
            args["part"] = first.part
        yield Span("compute", first.began_s, first.ended_s, _place(first), args, tuple(shared))


def _in_lanes(spans: Iterable[Span]) -> Iterator[tuple[Span, int, str]]:
    """Every span with its lane's number and name; a lane takes a span only when its last one has ended."""
    ends: dict[str, list[float]] = {lane: [] for lane in LANES}
    for span in sorted(spans, key=lambda span: (span.began_s, span.ended_s)):
        own = ends[span.lane]
        index = next((i for i, end in enumerate(own) if end <= span.began_s), len(own))
        if index == MAX_LANES_A_KIND:
            index = min(range(len(own)), key=own.__getitem__)
        if index == len(own):
            own.append(0.0)
        own[index] = max(own[index], span.ended_s)
        tid = 1 + LANES.index(span.lane) * MAX_LANES_A_KIND + index
        yield span, tid, span.lane if not index else f"{span.lane} {index + 1}"


def _complete(span: Span, pid: int, tid: int, origin_s: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.lane,
        "pid": pid,
        "tid": tid,
        "ts": _us(span.began_s - origin_s),
        "dur": max(0.0, round(_us(span.ended_s - origin_s) - _us(span.began_s - origin_s), 3)),
        "args": span.args,
    }


def _flow(
    number: int, message: Message, lane_of: dict[int, tuple[int, int]], origin_s: float
) -> Iterator[dict[str, Any]]:
    """An arrow from the box that sent to the box that received."""
    binding = {"bp": "e"}  # to the box around it, not the next one
    ends: tuple[tuple[str, TraceEvent, dict[str, str]], ...] = (
        ("s", message.sent, {}),
        ("f", message.received, binding),
    )
    for phase, event, more in ends:
        pid, tid = lane_of[id(event)]
        at = {"pid": pid, "tid": tid, "ts": _us(event.began_s - origin_s)}
        yield {"ph": phase, "id": number, "name": "hop", "cat": "hop", **at, **more}


def _names(pid: int, track: Track) -> Iterator[dict[str, Any]]:
    name = f"station {track.name}" if pid else "host"
    yield _metadata("process_name", pid, 0, {"name": name})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    if track.roles:
        yield _metadata("process_labels", pid, 0, {"labels": ", ".join(track.roles)})


def _metadata(what: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _about(track: Track) -> dict[str, Any]:
    about: dict[str, Any] = {"name": track.name, "events": len(track.events), "dropped": track.dropped}
    if track.error_s:
        about |= {"clock_offset_us": _us(track.offset_s), "clock_error_us": _us(track.error_s)}
    if track.problem:
        about["problem"] = track.problem
    return about


def _name(event: TraceEvent) -> str:
    if event.what == What.SAMPLE:
        return f"token {event.first}"
    if event.what == What.WAIT:
        return f"row {event.first}" if event.rows == 1 else f"rows {event.first}-{event.first + event.rows - 1}"
    port = Port(event.port).name.lower()
    return f"{port} to {_place(event)}" if event.what == What.SEND else f"{port} of {_place(event)}"


def _args(event: TraceEvent) -> dict[str, Any]:
    if event.what in (What.SAMPLE, What.WAIT):
        return _pass(event)
    args = {**_pass(event), "role": RECEIVERS[event.stream], "layer": event.layer, "bytes": event.num_bytes}
    if event.what == What.SEND:
        args["to"] = event.place or "host"
    if marks := Flags(event.flags) & ~Flags.FIN:
        args["flags"] = marks.name
    return args


def _place(event: TraceEvent) -> str:
    role = RECEIVERS[event.stream]
    if role not in ("embed", "head"):
        role += f" {event.layer}" if event.hi == event.layer else f" {event.layer}-{event.hi}"
    # A message has its sender's part, which is no part of where it goes.
    return f"{role} part {event.part}" if event.part and event.what == What.COMPUTE else role


def _pass(event: TraceEvent) -> dict[str, Any]:
    # Sessions are 64 bits: as text, since readers of JSON keep 53.
    about: dict[str, Any] = {"session": f"{event.session:x}", "epoch": event.epoch}
    about |= {"first": event.first, "rows": event.rows}
    return about if event.kind == Kind.CANONICAL else about | {"kind": Kind(event.kind).name.lower()}


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)
