"""What the core made leaves: every effect to its link, those of one turn together.

A message for a station that cannot be reached waits with its `Peer`; one that no link may carry goes back to the core,
which tells the host.
"""

from __future__ import annotations

from collections.abc import Mapping

from aeonflow import Link
from aeonflow.errors import FrameTooLargeError, LinkClosedError, StationLostError
from aeonflow.trace import Recorder

from ..core.outgoing import Outgoing, ToLink, ToStation
from ..core.station import Station
from .peers import Peer, Peers


class Sender:
    """Sends for `station` over `links`, by number, and to `peers`, by URL."""

    def __init__(self, station: Station, links: Mapping[int, Link], peers: Peers) -> None:
        self._station = station
        self._links = links
        self._peers = peers

    def send_outgoing(self) -> None:
        """Hand every effect to its link: what one turn made leaves together, and now.

        One pass alone makes one or two, for two stations: each is written at once, the first (n, on the critical path)
        before the second is framed.
        """
        take = self._station.take_outgoing
        while outgoing := take():
            if len(outgoing) > 2 or (len(outgoing) == 2 and outgoing[0][0] == outgoing[1][0]):
                self._send_together(outgoing)
                continue
            trace = self._station.trace
            for effect in outgoing:
                began_s = trace.clock() if trace is not None else 0.0
                self._send(effect, now=True)
                if trace is not None:
                    _record_sent(trace, began_s, effect)

    def _send_together(self, outgoing: list[Outgoing]) -> None:
        """Frame all, then flush the links used: what goes to one station is one message."""
        trace = self._station.trace
        used: dict[int, Link | Peer] = {}
        marks: list[tuple[float, Outgoing, int]] = []
        for effect in outgoing:
            began_s = trace.clock() if trace is not None else 0.0
            target = self._send(effect)
            if target is not None:
                used[id(target)] = target
                if trace is not None:
                    marks.append((began_s, effect, id(target)))
        for key, target in used.items():
            target.flush()
            if trace is not None:
                for began_s, effect, to in marks:
                    if to == key:
                        _record_sent(trace, began_s, effect)

    def _send(self, effect: Outgoing, *, now: bool = False) -> Link | Peer | None:
        """Queue an effect on its link, or write it `now`. Returns what to flush."""
        if type(effect) is ToStation:
            try:
                peer = self._peers.get(effect.url)
            except StationLostError as error:  # its route was replaced while this was computed
                self._station.unsent(effect, error)
                return None
            peer.send(effect, now=now)
            return peer
        assert type(effect) is ToLink
        link = self._links.get(effect.link)
        if link is not None:
            try:
                link.send(effect.stream, effect.sequence, effect.pieces, effect.flags, now=now)
            except FrameTooLargeError as error:
                self._station.unsent(effect, error)
            except LinkClosedError:
                pass  # its on_close drops the sessions of that host
        return link


def _record_sent(trace: Recorder, began_s: float, effect: Outgoing) -> None:
    """A message that began to be framed at `began_s` has just been written."""
    place = effect.url if isinstance(effect, ToStation) else ""
    trace.sent(began_s, effect.stream, effect.flags, effect.pieces, place)
