"""Deadlines of passes: which sessions wait too long, and which station holds the position back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aeonflow.errors import DeadlineError, SeedError
from aeonflow.messages import Carrier, Route, Where, Whereabouts
from aeonflow.route import takes_canonical_seed

from .links import LinkState, StationLink, answers
from .sequence import TokenSequence

WHERE_TIMEOUT_S = 2.0  # a station answers at once, even while it computes; who does not is the one to name


def overdue(sequences: Iterable[TokenSequence], now: float, deadline_s: float) -> Iterator[TokenSequence]:
    """Sessions whose oldest pass has had no answer for `deadline_s`, and that nobody looks into yet."""
    for sequence in sequences:
        if sequence.oldest_in_flight is not None and not sequence.is_suspect and now - sequence.progress_s > deadline_s:
            yield sequence


async def who_is_behind(
    route: Route, stations: Sequence[StationLink], sequence: TokenSequence, deadline_s: float
) -> DeadlineError | SeedError:
    """Ask every station how far it has passed the session on; the error names the first that has not.

    SeedError where that station lives and may be waiting for a residual seed: without seeds the pass can go on.
    """
    position = sequence.oldest_in_flight
    replies = await answers(stations, Where(sequence.session), Whereabouts, WHERE_TIMEOUT_S)
    waited = f"no answer for position {position} within {deadline_s:g} s"
    place = first_behind(route, (position or 0) + 1, replies)
    if place is None:
        return DeadlineError(f"{waited}, though every station says it passed it on")
    carrier, layer = place
    name = stations[carrier.station].name
    layers = "" if carrier.role in ("embed", "head") else f" of layers {carrier.lo}-{carrier.hi}"
    if carrier.station not in replies:
        return DeadlineError(f"{waited}: station {name} ({carrier.role}{layers}) does not answer at all")
    busy = _long_batch(stations[carrier.station], deadline_s)
    if not busy and takes_canonical_seed(route, carrier.role, layer):
        return lost_seed(waited, name, carrier, layer)
    return DeadlineError(f"{waited}: station {name} ({carrier.role}{layers}) has not passed it on{busy}")


def lost_seed(waited: str, name: str, carrier: Carrier, layer: int) -> SeedError:
    """The error for a pass that waits for a seed at station `name`."""
    return SeedError(f"{waited}: a residual seed for {carrier.role} of layer {layer} did not come to station {name}")


def _long_batch(station: StationLink, deadline_s: float) -> str:
    """What the last heartbeat says of a compute thread that hangs; empty where batches come and go.

    Half the deadline is enough: a heartbeat is up to a second old, and the batch began after the pass did.
    """
    busy_s = station.link.remote_heartbeat.busy_s if station.state is LinkState.READY else 0.0
    return f": its batch has run for {busy_s:.1f} s" if busy_s >= deadline_s / 2 else ""


def first_behind(route: Route, end: int, replies: Mapping[int, Whereabouts]) -> tuple[Carrier, int] | None:
    """The first carrier, in the order of the pass, that has not sent on every row below `end`, and of which layer.

    `replies` by the station's index in the route; who has not replied is behind.
    """
    for carrier, layer in _in_pass_order(route):
        reply = replies.get(carrier.station)
        if reply is None:
            return carrier, layer
        passed = [
            position
            for role, at, position in reply.passed
            if role == carrier.role and (at == layer or (role == "block" and carrier.lo <= at <= carrier.hi))
        ]
        if max(passed, default=0) < end:
            return carrier, layer
    return None


def _in_pass_order(route: Route) -> Iterator[tuple[Carrier, int]]:
    """Every role of every layer as a pass meets them."""
    yield from ((c, 0) for c in route.carriers if c.role == "embed")
    for layer in range(route.num_layers):
        for role in ("block", "attn", "gate_up", "ffn", "down"):
            for c in route.carriers:
                if c.role == role and c.lo <= layer <= c.hi and (role != "block" or c.lo == layer):
                    yield c, layer
    yield from ((c, 0) for c in route.carriers if c.role == "head")
