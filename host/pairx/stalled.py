"""Passes that stand still before a stage that takes a canonical seed: the seed was lost.

A seed is not acknowledged, and of the two frames that meet at a stage the other may be lost with it, so no station can
tell. The host can: it asks how far every station has passed the session on, and finds the pass before the same stage
again after a while, though the station there answers, computes nothing and has nothing waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from aeonflow.errors import SeedError
from aeonflow.messages import Carrier, Route, Where, Whereabouts
from aeonflow.route import has_canonical_seeds, takes_canonical_seed

from ..deadline import first_behind, lost_seed
from ..links import LinkState, StationLink, answers
from ..sequence import TokenSequence

SEED_PATIENCE_S = 2.0  # between two looks that find a pass in one place; by far longer than a frame is under way
WHERE_TIMEOUT_S = 1.0


class _Stand(NamedTuple):
    """Where a pass was found: epoch, its last position, station and layer of the stage it is behind; and since when."""

    epoch: int
    position: int
    station: int
    layer: int
    since_s: float

    def is_same(self, other: _Stand) -> bool:
        return self[:-1] == other[:-1]


class StalledPasses:
    """What is remembered of sessions between two looks at them; `patience_s` as in SEED_PATIENCE_S."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._stands: dict[int, _Stand] = {}

    def due(self, sequences: Mapping[int, TokenSequence], now: float) -> Iterator[TokenSequence]:
        """Sessions with canonical seeds whose oldest pass is not answered after `patience_s`."""
        self._stands = {session: stand for session, stand in self._stands.items() if session in sequences}
        for sequence in sequences.values():
            if (
                sequence.oldest_in_flight is not None
                and not sequence.is_suspect
                and now - sequence.progress_s > self._patience_s
                and has_canonical_seeds(sequence.passage.route)
            ):
                yield sequence

    async def look(self, stations: Sequence[StationLink], sequence: TokenSequence, now: float) -> SeedError | None:
        """Ask where the oldest pass of `sequence` stands. SeedError once it is known that a seed will not come."""
        session, epoch, position = sequence.session, sequence.epoch, sequence.oldest_in_flight
        route, before = sequence.passage.route, self._stands.pop(sequence.session, None)
        if position is None:
            return None
        replies = await answers(stations, Where(session), Whereabouts, WHERE_TIMEOUT_S)
        place = first_behind(route, position + 1, replies)
        if place is None or not waits_for_seed(route, *place, stations, replies):
            return None
        if not sequence.is_current(epoch) or sequence.oldest_in_flight != position:
            return None
        carrier, layer = place
        stand = _Stand(epoch, position, carrier.station, layer, now)
        if before is None or not before.is_same(stand):
            self._stands[session] = stand
            return None
        if now - before.since_s < self._patience_s:
            self._stands[session] = before
            return None
        waited = f"position {position} has stood still for {now - before.since_s:.1f} s"
        return lost_seed(waited, stations[carrier.station].name, carrier, layer)


def waits_for_seed(
    route: Route, carrier: Carrier, layer: int, stations: Sequence[StationLink], replies: Mapping[int, Whereabouts]
) -> bool:
    """Can a lost seed be why `carrier` has not passed on its rows of `layer`: it takes one, answers, and is idle?"""
    station = stations[carrier.station]
    if not takes_canonical_seed(route, carrier.role, layer):
        return False
    if carrier.station not in replies or station.state is not LinkState.READY:
        return False
    heartbeat = station.link.remote_heartbeat
    return not heartbeat.queued and not heartbeat.busy_s
