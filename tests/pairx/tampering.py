"""Somebody on the line to one station who does one thing to one residual seed, and remembers it."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from aeonflow import Flags, bands, fano
from aeonflow.passes import ATTENTION, PassContext
from aeonflow.tensors import unpack_tensors
from tests.engine.local_stations import LocalFleet


class Seed(NamedTuple):
    """A seed as it comes: stream, sequence (its position), payload."""

    stream: int
    position: int
    payload: bytes

    @property
    def line(self) -> str:
        """The Fano line, as status names it."""
        return "".join(map(str, fano.LINES[(self.stream - bands.SEED_FIRST) >> 1].points))


def another(seed: Seed) -> Seed:
    """A seed of the same key with other rows, and the fingerprint of those."""
    head = unpack_tensors(seed.payload)[0]
    rows = 2.0 * np.frombuffer(head.data, np.float32).reshape(head.dim0, head.dim1)
    line, sign = divmod(seed.stream - bands.SEED_FIRST, 2)
    src_layer = head.layer if line == ATTENTION else head.layer - 1
    jump = PassContext.of(head).alpha_jump(line, sign, rows.data, src_layer, "", head.first)
    return seed._replace(payload=b"".join(bytes(piece) for piece in jump.pieces))


Change = Callable[[Seed], list[Seed]]

# What comes in a seed's place.
FAULTS: dict[str, Change] = {
    "lost": lambda seed: [],
    "late": lambda seed: [],  # until the session has left its epoch
    "doubled": lambda seed: [seed, seed],
    "damaged": lambda seed: [seed._replace(payload=seed.payload[:60] + b"\xff" + seed.payload[61:])],
    "cut short": lambda seed: [seed._replace(payload=seed.payload[:-3])],
    "of the wrong sign": lambda seed: [seed._replace(stream=seed.stream ^ fano.MINUS)],
    "contradicted": lambda seed: [seed, another(seed)],
}


class OnTheLine:
    """Seeds of `line` that come to `station` from others: `fault` befalls the first at or behind position `at`, or all
    of them from there on. "seen" is no fault. A context; behind it the line is as it was."""

    def __init__(
        self, fleet: LocalFleet, station: str, fault: str, *, line: str = "145", at: int = 0, always: bool = False
    ) -> None:
        self.done = 0
        self.newest: Seed | None = None
        self._link = 0
        self._core: Any = fleet.station(station).core
        self._fault = (FAULTS | {"seen": lambda seed: [seed]})[fault]
        self._is_late = fault == "late"
        self._line = line
        self._at = at
        self._always = always
        self._held: list[tuple[Any, ...]] = []

    def __enter__(self) -> Self:
        receive = self._core.receive

        def changed(link: int, stream: int, sequence: int, flags: Any, payload: Any, now: float) -> None:
            if bands.is_seed(stream) and (self._always or not self.done) and sequence >= self._at:
                seed = Seed(stream, sequence, bytes(payload))
                if seed.line == self._line:
                    self.done += 1
                    self.newest, self._link = seed, link
                    if self._is_late:
                        self._held.append((link, stream, sequence, flags, seed.payload, now))
                    for one in self._fault(seed):
                        receive(link, one.stream, one.position, flags, one.payload, now)
                    return
            receive(link, stream, sequence, flags, payload, now)
            if self._held and stream in bands.STREAM_ROLES and _epoch(payload) > _epoch(self._held[0][4]):
                receive(*self._held.pop())

        self._core.receive = changed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del self._core.receive

    def deliver(self, seed: Seed) -> None:
        """`seed` comes to the station as from the one that sent the newest."""
        self._core.receive(self._link, seed.stream, seed.position, Flags.FIN, seed.payload, time.monotonic())


def _epoch(payload: Any) -> int:
    (epoch,) = struct.unpack_from("<I", payload, 8)
    return int(epoch)
