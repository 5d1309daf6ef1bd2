"""A trace that was brought home: the host's events and every station's, all on the host's clock."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from aeonflow.messages import TraceEvent
from aeonflow.trace import What

HOST = 0  # the host's place among the tracks; station i of the plan is i + 1


class Track(msgspec.Struct, frozen=True):
    """What one process recorded, in the order in which it ended.

    `offset_s` was subtracted from its clock; its times may be wrong by `error_s`, half the round trip it was measured
    with. `dropped` events were overwritten. `urls`: how messages to it are addressed. `problem`: why there is nothing.
    """

    name: str
    events: tuple[TraceEvent, ...] = ()
    roles: tuple[str, ...] = ()
    urls: frozenset[str] = frozenset()
    offset_s: float = 0.0
    error_s: float = 0.0
    dropped: int = 0
    problem: str = ""


class Message(NamedTuple):
    """A message that was seen on both sides."""

    sent: TraceEvent
    received: TraceEvent

    @property
    def wire_s(self) -> float:
        """From the end of the write to the beginning of its handling; clocks that are a little off never make it less
        than nothing."""
        return max(0.0, self.received.began_s - self.sent.ended_s)


class Recording(msgspec.Struct, frozen=True):
    """`tracks[0]` is the host, then the stations in the order of the plan. `began_s`: the host's clock at the start."""

    tracks: tuple[Track, ...]
    began_s: float
    ended_s: float

    @property
    def stations(self) -> tuple[Track, ...]:
        return self.tracks[1:]

    def messages(self) -> Iterator[Message]:
        """Every message of which both ends were recorded; equal ones are matched in the order they were sent."""
        places = {url: index for index, track in enumerate(self.tracks) for url in track.urls}
        arrivals: dict[tuple[int, ...], deque[TraceEvent]] = defaultdict(deque)
        for index, track in enumerate(self.tracks):
            for event in track.events:
                if event.what == What.RECEIVE:
                    arrivals[(index, *_identity(event))].append(event)
        for track in self.tracks:
            for event in track.events:
                if event.what != What.SEND:
                    continue
                to = places.get(event.place, HOST)
                found = arrivals.get((to, *_identity(event)))
                if found:
                    yield Message(event, found.popleft())


def _identity(event: TraceEvent) -> tuple[int, ...]:
    rows = event.session, event.epoch, event.first, event.rows, event.kind
    return (*rows, event.stream, event.layer, event.port, event.part)
