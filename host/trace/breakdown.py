"""Where the time of traced passes went: per role, on the wire, in the host; and what to improve first.

The time of a pass, from its departure at the host to its answer, is the time of the kernel calls it went through, the
time it waited for them, and the rest: messages being written, carried and read, at stations and between them. Between
an answer and the next departure works the host (in a relay also in between). Passes that share a kernel call are each
charged all of it: both waited.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from aeonflow.bands import HEAD, RECEIVERS
from aeonflow.messages import TraceEvent
from aeonflow.trace import What

from .recording import Recording

ROLE_ORDER = ("embed", "attn", "gate_up", "down", "ffn", "block", "head")
WIRE, HOST = "wire", "host"


class RoleTime(msgspec.Struct):
    """What a role did for the passes looked at; seconds summed over stations and parts.

    `calls` of kernels, with `rows` in them, took `compute_s`; passes waited `queue_s` for them and spent
    `pass_compute_s` in them, more than `compute_s` where several shared a call. `receive_s`: taking in the messages
    that came to the role.
    """

    calls: int = 0
    rows: int = 0
    compute_s: float = 0.0
    queue_s: float = 0.0
    pass_compute_s: float = 0.0
    receive_s: float = 0.0
    messages_received: int = 0
    bytes_received: int = 0


class Breakdown(msgspec.Struct, frozen=True):
    """Of `passes` passes: `pass_s` from departure to answer, summed; `host_s` of choosing, sending, spelling.

    `wire_s` is what of `pass_s` was neither compute nor a queue. `hop_s`: median of the time between a write and the
    beginning of its handling; `messages` of them were seen. `send_s`: stations framing and writing.
    """

    passes: int
    pass_s: float
    host_s: float
    wire_s: float
    send_s: float
    messages: int
    hop_s: float
    per_role: dict[str, RoleTime]

    @property
    def shares(self) -> dict[str, float]:
        """Of the time of all passes and of the host between them: each role with its queue, the wire, the host."""
        parts = {role: one.pass_compute_s + one.queue_s for role, one in self.per_role.items()}
        parts |= {WIRE: self.wire_s, HOST: self.host_s}
        total = sum(parts.values())
        return {name: part / total if total else 0.0 for name, part in parts.items()}

    @property
    def bottleneck(self) -> str:
        """The role, `wire` or `host` with the largest share."""
        shares = self.shares
        return max(shares, key=shares.__getitem__)

    def to_json(self) -> dict[str, Any]:
        """Plain values: seconds, shares, and the bottleneck in words."""
        return {
            "passes": self.passes,
            "pass_s": round(self.pass_s, 6),
            "host_s": round(self.host_s, 6),
            "wire_s": round(self.wire_s, 6),
            "send_s": round(self.send_s, 6),
            "messages": self.messages,
            "message_wire_us": round(1e6 * self.hop_s, 1),
            "per_role": {role: _rounded(one) for role, one in self.per_role.items()},
            "shares": {name: round(share, 4) for name, share in self.shares.items()},
            "bottleneck": self.bottleneck,
        }


def break_down(recording: Recording, wanted: Callable[[TraceEvent], bool]) -> Breakdown:
    """The breakdown of the passes for which `wanted` holds (it is asked for every event) and that were answered."""
    host = [event for event in recording.tracks[0].events if wanted(event)]
    waits = [event for event in host if event.what == What.WAIT]
    answered = {_pass(event) for event in waits}
    pass_s = _seconds(waits)
    per_role: dict[str, RoleTime] = {}
    send_s = 0.0
    for index, track in enumerate(recording.stations):
        batches: set[tuple[int, int]] = set()
        for event in track.events:
            if _pass(event) not in answered:
                continue
            if event.what == What.SEND:
                send_s += event.ended_s - event.began_s
            else:
                _add(per_role.setdefault(RECEIVERS[event.stream], RoleTime()), event, (index, event.batch), batches)
    answers = [event for event in host if event.what == What.RECEIVE]
    accounted_s = sum(one.pass_compute_s + one.queue_s for one in per_role.values())
    accounted_s += _seconds(event for event in answers if event.stream != HEAD)
    wires = [message.wire_s for message in recording.messages() if _pass(message.sent) in answered]
    return Breakdown(
        passes=len(waits),
        pass_s=pass_s,
        host_s=_seconds(answers),
        wire_s=max(0.0, pass_s - accounted_s),
        send_s=send_s,
        messages=len(wires),
        hop_s=statistics.median(wires) if wires else 0.0,
        per_role={role: per_role[role] for role in ROLE_ORDER if role in per_role},
    )


def _add(role: RoleTime, event: TraceEvent, batch: tuple[int, int], batches: set[tuple[int, int]]) -> None:
    seconds = event.ended_s - event.began_s
    if event.what == What.RECEIVE:
        role.receive_s += seconds
        role.messages_received += 1
        role.bytes_received += event.num_bytes
        return
    role.rows += event.rows
    role.queue_s += max(0.0, event.began_s - event.queued_s)
    role.pass_compute_s += seconds
    if batch not in batches:
        batches.add(batch)
        role.calls += 1
        role.compute_s += seconds


def _pass(event: TraceEvent) -> tuple[int, int, int, int]:
    return event.session, event.epoch, event.first, event.rows


def _seconds(events: Iterable[TraceEvent]) -> float:
    return sum(event.ended_s - event.began_s for event in events)


def _rounded(one: RoleTime) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(one)
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}
