"""Effects of the core: what the shell is to send, and to whom. Values only; payload pieces are views, not copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aeonflow.frames import Buffer, Flags

FIN = Flags.FIN
VENT = Flags.VENT | Flags.FIN
VENT_POISON = Flags.VENT | Flags.POISON | Flags.FIN

# Messages sent unasked on a host's link have even sequences from here on: calls of the side that dialled are odd
# there, and counters of one-way messages stay below, so a host never takes one for the reply to a call.
UNASKED_FIRST = 0x8000_0000
UNASKED_MASK = 0x7FFF_FFFE


class ToLink(NamedTuple):
    """A message on a connection that the shell knows by `link`."""

    link: int
    stream: int
    sequence: int
    pieces: Sequence[Buffer]
    flags: Flags = FIN


class ToStation(NamedTuple):
    """A one-way message to the station at `url`, for `session`; under the shell's own sequence unless it has one."""

    url: str
    stream: int
    pieces: Sequence[Buffer]
    flags: Flags
    session: int
    sequence: int | None = None


Outgoing = ToLink | ToStation


class Caller(NamedTuple):
    """Where the answer of a call (route 0, control) goes."""

    link: int
    stream: int
    sequence: int
