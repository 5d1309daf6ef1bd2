"""A chain whose every message goes by the host: `--route relay` where passes run ahead of each other (Pair X).

Stations send what they have for one another here, as on any chain, and it leaves at once for whoever takes it, byte for
byte but for its hops: canonical rows, seeds, drafts, each in the order in which it came. Nothing waits here, so nothing
has to go first. What is of an epoch that the session has left goes no further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import msgspec

from aeonflow import bands
from aeonflow.assembly import Message
from aeonflow.errors import AeonflowError, BadTensorError, LinkClosedError, SeedError, StationLostError
from aeonflow.fano import PLUS
from aeonflow.frames import HEADER_BYTES
from aeonflow.messages import Route
from aeonflow.passes import ATTENTION, FFN, RESIDUAL
from aeonflow.tensors import MAX_HOP, PREFIX, PREFIX_BYTES, Kind, Port, Tensor, pack_tensors, unpack_tensors

from .chain import ChainPassage
from .links import LOSS_NOTICE_S, StationLink
from .relay import SeedCounts
from .sequence import TokenSequence

_SEED_LINES = {"attn": (RESIDUAL,), "gate_up": (ATTENTION, FFN)}  # who takes seeds of which lines

Sequences = Mapping[int, TokenSequence]


class ForwardedPassage(ChainPassage):
    """Passes along a route installed with `through_host`. `seeds` counts those that end here."""

    def __init__(self, route: Route, stations: Sequence[StationLink], vocab_size: int, seeds: SeedCounts) -> None:
        super().__init__(route, stations, vocab_size)
        self._stations = stations
        self._seeds = seeds
        self._takers = takers(route)
        self.streams = frozenset(stream for stream, _ in self._takers)
        self._carried: WeakKeyDictionary[TokenSequence, int] = WeakKeyDictionary()  # bytes since the last answer

    def take(self, source: StationLink, message: Message, sequences: Sequences) -> bool:
        """An answer, or what is to be sent on. False for what is of a past epoch, session or route.

        BadTensorError for what cannot be read or nobody takes; of a canonical pass its session has failed then.
        """
        try:
            tensors = unpack_tensors(message.payload)
        except BadTensorError as error:
            _fail_unreadable(message, sequences, error)
            raise
        head, stream = tensors[0], message.stream
        if stream == bands.HEAD and head.port != Port.X:
            return self.receive(message.payload, sequences)
        sequence = sequences.get(head.session)
        if sequence is None or not sequence.is_current(head.epoch) or head.route != sequence.passage.route.route:
            if bands.is_seed(stream):
                self._seeds.stale[(stream - bands.SEED_FIRST) >> 1] += 1
            return False
        self._count(sequence, source, len(message.payload))
        targets = self._takers.get((stream, head.layer), ())
        if not targets:
            nobody = BadTensorError(
                f"station {source.name} sent stream {stream:04x} of layer {head.layer}: nobody takes it"
            )
            _fail(sequence, stream, head.kind, nobody)
            raise nobody
        for index in targets:
            if (station := self._stations[index]) is not source:  # which has its own already
                self._send_on(sequence, station, message, tensors)
        return True

    def _send_on(
        self, sequence: TokenSequence, station: StationLink, message: Message, tensors: Sequence[Tensor]
    ) -> None:
        hop = int(station.is_remote)
        pieces = pack_tensors([msgspec.structs.replace(t, hop=min(t.hop + hop, MAX_HOP)) for t in tensors])
        own_sequence = message.sequence if bands.is_seed(message.stream) else None
        try:
            station.send(message.stream, pieces, sequence=own_sequence, flags=message.flags)
        except (LinkClosedError, StationLostError) as lost:
            if tensors[0].kind == Kind.CANONICAL:  # the news of the loss ends the pass, unless it is older than that
                loop = asyncio.get_running_loop()
                loop.call_later(LOSS_NOTICE_S, sequence.failed_if_current, sequence.epoch, lost)
            return
        except AeonflowError as error:
            _fail(sequence, message.stream, tensors[0].kind, error)
            return
        self._count(sequence, station, len(message.payload))

    def _count(self, sequence: TokenSequence, station: StationLink, payload_bytes: int) -> None:
        if station.is_remote:
            self._carried[sequence] = self._carried.get(sequence, 0) + HEADER_BYTES + payload_bytes

    def _host_bytes(self, sequence: TokenSequence, parts: Sequence[Tensor]) -> int:
        return super()._host_bytes(sequence, parts) + self._carried.pop(sequence, 0)


def installed(route: Route, stations: Sequence[StationLink], vocab_size: int, seeds: SeedCounts) -> ChainPassage:
    """Passes along a route that is installed, straight or through this host. `seeds` counts those that end here."""
    if route.through_host:
        return ForwardedPassage(route, stations, vocab_size, seeds)
    return ChainPassage(route, stations, vocab_size)


def takers(route: Route) -> dict[tuple[int, int], tuple[int, ...]]:
    """The stations that take what comes on a stream for a layer, by (stream, layer); of head parts the layer is 0."""
    found: dict[tuple[int, int], dict[int, None]] = {}
    for c in route.carriers:
        if c.role == "embed":
            continue  # ids are the host's own
        streams = [bands.ROLE_STREAMS[c.role], *(bands.seed_stream(line, PLUS) for line in _SEED_LINES.get(c.role, ()))]
        layers = range(1) if c.role == "head" else range(c.lo, (c.lo if c.role == "block" else c.hi) + 1)
        for stream in streams:
            for layer in layers:
                found.setdefault((stream, layer), {})[c.station] = None
    return {at: tuple(stations) for at, stations in found.items()}


def _fail(sequence: TokenSequence, stream: int, kind: int, error: AeonflowError) -> None:
    """A message goes no further: that ends a canonical pass, which can do without seeds; a draft is best effort."""
    if kind == Kind.CANONICAL:
        sequence.failed(SeedError(str(error)) if bands.is_seed(stream) else error)


def _fail_unreadable(message: Message, sequences: Sequences, error: BadTensorError) -> None:
    """The same for a message of which no more than its first prefix can be read, if that."""
    payload = message.payload
    if len(payload) < PREFIX_BYTES:
        return
    session, epoch, _, _, _, _, _, kind, *_ = PREFIX.unpack_from(payload)
    sequence = sequences.get(session)
    if sequence is not None and sequence.is_current(epoch):
        _fail(sequence, message.stream, kind, error)
