"""Relay: the host makes every hop, request and reply a role: the oracle and the baseline that chains are held against.

A pass is a generator of calls (`relay_steps`): pure, it yields what to ask whom and is sent the replies. The driver
feeds it from the readers of the links, without a task a hop.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from aeonflow import bands
from aeonflow.assembly import Message
from aeonflow.errors import AeonflowError, BadTensorError
from aeonflow.fano import LINES, PLUS
from aeonflow.frames import HEADER_BYTES
from aeonflow.messages import Carrier, Route
from aeonflow.passes import INITIAL, RESIDUAL, PassContext
from aeonflow.route import ffn_slices, holder, input_holders, is_bypassed, num_parts
from aeonflow.tensors import DType, Kind, Port, Tensor, options_byte, pack_tensors, unpack_tensors

from .chain import join_parts
from .links import StationLink
from .sequence import Pass, TokenSequence

Data = bytes | bytearray | memoryview


class Seed(NamedTuple):
    """A residual seed that the relaying host sends in place of the station it had the rows from."""

    carrier: Carrier
    line: int
    src_layer: int
    kind: Kind
    data: Data
    width: int


class Call(NamedTuple):
    """One request to a station. `seeds` leave before it."""

    carrier: Carrier
    layer: int
    inputs: tuple[tuple[Port, Data, int], ...]  # port, bytes, width
    seeds: tuple[Seed, ...] = ()


class SeedCounts:
    """Residual seeds by Fano line: those that this host has sent itself, and those that came for others and went no
    further, since their epoch or session was over."""

    def __init__(self) -> None:
        self.by_line = [0] * len(LINES)
        self.stale = [0] * len(LINES)


class Output(NamedTuple):
    """The tensors of a reply by port, and the hops they took."""

    ports: Mapping[int, Tensor]
    hop: int

    def take(self, port: Port, call: Call) -> tuple[Port, Data, int]:
        """An output as an input of the next call."""
        tensor = self.ports.get(port)
        if tensor is None or tensor.dtype != DType.F32:
            raise BadTensorError(f"{call.carrier.role} of layer {call.layer} did not answer with f32 port {port.name}")
        return port, tensor.data, tensor.dim1


Steps = Generator[list[Call], list[Output], list[Tensor]]


def relay_steps(route: Route, ids: bytes) -> Steps:
    """The calls of one pass in order; what is yielded together may run at once. Returns the head parts' tensors."""
    calls = [Call(c, 0, ((Port.IDS, ids, 1),)) for c in _parts(route, "embed")]
    outputs = yield calls
    x = _sum([output.take(Port.X, call) for output, call in zip(outputs, calls, strict=True)])
    layer = 0
    is_ladder = route.residual == "ladder"
    below: tuple[tuple[Port, Data, int], ...] = ()  # h of the layer before, which a ladder's attention takes beside x
    initial = _initial_seed(route, x)
    while layer < route.num_layers:
        entry = input_holders(route, layer)[0]
        call = Call(entry, layer, (x, *below), initial)
        initial = ()
        (output,) = yield [call]
        if entry.role == "block":
            x = output.take(Port.X, call)
            below = (output.take(Port.H, call),) if is_ladder else ()
            layer = entry.hi + 1
            continue
        h, n = output.take(Port.H, call), output.take(Port.N, call)
        below = (h,) if is_ladder else ()
        if slices := ffn_slices(route, layer):
            calls = [Call(c, layer, (n,)) for c in slices]
            outputs = yield calls
            x = _add_slices(h, [output.take(Port.F, call) for output, call in zip(outputs, calls, strict=True)])
            layer += 1
            continue
        above = layer + 1
        seeds = _seed(route, layer, h if route.seed == "h" else x)
        call = Call(holder(route, "gate_up", layer), layer, (n,), seeds)
        (output,) = yield [call]
        u = output.take(Port.U, call)
        call = Call(holder(route, "down", layer), layer, (u,) if is_bypassed(route, above) else (h, u))
        (output,) = yield [call]
        x = output.take(Port.F if is_bypassed(route, above) else Port.X, call)
        layer = above
    outputs = yield [Call(c, 0, (x,)) for c in input_holders(route, route.num_layers)]
    return [next(iter(output.ports.values())) for output in outputs]


def _initial_seed(route: Route, x: tuple[Port, Data, int]) -> tuple[Seed, ...]:
    """Line 0: the embedding row, which must be what the chain delivers to layer 0."""
    entry = input_holders(route, 0)[0]
    if route.pair_x != "shadow" or entry.role != "attn" or num_parts(route, "embed") > 1:
        return ()
    return (Seed(entry, INITIAL, 0, Kind.SHADOW, x[1], x[2]),)


def _seed(route: Route, layer: int, rows: tuple[Port, Data, int]) -> tuple[Seed, ...]:
    """Line 1: what the attention of the layer above is given ahead of the chain."""
    if route.pair_x == "off" or layer + 1 not in route.seeded:
        return ()
    kind = Kind.SHADOW if route.pair_x == "shadow" else Kind.CANONICAL
    return (Seed(holder(route, "attn", layer + 1), RESIDUAL, layer, kind, rows[1], rows[2]),)


class RelayPassage:
    """Passes by request and reply. `seeds` counts the residual seeds among them."""

    route_id = 0  # answers go to the caller

    def __init__(self, route: Route, stations: Sequence[StationLink], vocab_size: int, seeds: SeedCounts) -> None:
        self.route = route
        self._seeds = seeds
        self._stations = stations
        self._vocab_size = vocab_size

    def send(self, sequence: TokenSequence, one: Pass) -> None:
        """Start the pass; the replies carry it on."""
        steps = relay_steps(self.route, one.ids)
        _Flight(self._stations, self._vocab_size, sequence, one, steps, self._seeds).advance(None)


class _Flight:
    """One pass under way. `hop` is the number of crossings behind it."""

    def __init__(
        self,
        stations: Sequence[StationLink],
        vocab_size: int,
        sequence: TokenSequence,
        one: Pass,
        steps: Steps,
        seeds: SeedCounts,
    ) -> None:
        self._stations = stations
        self._vocab_size = vocab_size
        self._sequence = sequence
        self._pass = one
        self._steps = steps
        self._seeds = seeds
        self._outputs: list[Output | None] = []
        self._missing = 0
        self._hop = 0
        self._num_bytes = 0

    def advance(self, outputs: list[Output] | None) -> None:
        """Make the next calls, or deliver the answer."""
        try:
            calls = next(self._steps) if outputs is None else self._steps.send(outputs)
        except StopIteration as end:
            answer = join_parts(self._pass.last, end.value, self._vocab_size, num_bytes=self._num_bytes)
            self._sequence.answered(answer)
            return
        self._outputs = [None] * len(calls)
        self._missing = len(calls)
        for index, call in enumerate(calls):
            self._request(index, call)

    def _jump(self, seed: Seed) -> None:
        """A residual seed to the station it is for."""
        station, one = self._stations[seed.carrier.station], self._pass
        context = PassContext(
            one.session, one.epoch, one.base, one.settled, seed.kind, one.first, one.rows,
            options_byte(grow=one.grow, want=one.want), 0, self._hop + int(station.is_remote),
        )  # fmt: skip
        rows = memoryview(seed.data).cast("B").cast("f", (one.rows, seed.width))
        jump = context.alpha_jump(seed.line, PLUS, rows, seed.src_layer, station.url, one.first)
        if station.is_remote:
            self._num_bytes += HEADER_BYTES + sum(memoryview(piece).nbytes for piece in jump.pieces)
        self._seeds.by_line[seed.line] += 1
        station.send(jump.stream, jump.pieces, sequence=jump.sequence)

    def _request(self, index: int, call: Call) -> None:
        for seed in call.seeds:
            self._jump(seed)
        station = self._stations[call.carrier.station]
        pieces = pack_tensors([self._tensor(call, station, *one) for one in call.inputs])
        if station.is_remote:
            self._num_bytes += HEADER_BYTES + sum(len(piece) for piece in pieces)
        station.request(bands.ROLE_STREAMS[call.carrier.role], pieces, partial(self._replied, index, station))

    def _tensor(self, call: Call, station: StationLink, port: Port, data: Data, width: int) -> Tensor:
        one = self._pass
        return one.tensor(
            layer=call.layer,
            port=port,
            options=options_byte(want=one.want, part=call.carrier.part),
            dtype=DType.U32 if port is Port.IDS else DType.F32,
            route=0,
            hop=self._hop + int(station.is_remote),
            dim0=one.rows,
            dim1=width,
            data=data,
        )

    def _replied(self, index: int, station: StationLink, reply: Message | AeonflowError) -> None:
        if not self._sequence.is_current(self._pass.epoch):
            self._steps.close()
            return
        if isinstance(reply, AeonflowError):
            self._sequence.failed(reply)
            return
        try:
            tensors = unpack_tensors(reply.payload)
            if station.is_remote:
                self._num_bytes += HEADER_BYTES + len(reply.payload)
            self._outputs[index] = Output({t.port: t for t in tensors}, tensors[0].hop)
            self._missing -= 1
            if not self._missing:
                outputs = [output for output in self._outputs if output is not None]
                self._hop = max(output.hop for output in outputs)
                self.advance(outputs)
        except AeonflowError as error:
            self._sequence.failed(error)


def _parts(route: Route, role: str) -> list[Carrier]:
    return sorted((c for c in route.carriers if c.role == role), key=lambda c: c.part)


def _add_slices(h: tuple[Port, Data, int], slices: list[tuple[Port, Data, int]]) -> tuple[Port, Data, int]:
    """x = h + the fixed tree over the slices' sums, as the holder of the next layer's input adds them on a chain."""
    _check_alike([h, *slices])
    sums = [np.frombuffer(data, "<f4") for _, data, _ in slices]
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    total = np.add(np.frombuffer(h[1], "<f4"), sums[0], dtype=np.float32)
    return Port.X, total.data.cast("B"), h[2]


def _sum(parts: list[tuple[Port, Data, int]]) -> tuple[Port, Data, int]:
    """The embed parts' x added in the order of the parts: all but one are zero in each row, so the sum is exact."""
    if len(parts) == 1:
        return parts[0]
    _check_alike(parts)
    total = np.frombuffer(parts[0][1], "<f4").copy()
    for _, data, _ in parts[1:]:
        total += np.frombuffer(data, "<f4")
    return Port.X, total.data.cast("B"), parts[0][2]


def _check_alike(parts: list[tuple[Port, Data, int]]) -> None:
    """BadTensorError unless all have one shape: they are to be added."""
    shapes = {(len(data), width) for _, data, width in parts}
    if len(shapes) > 1:
        told = " and ".join(f"{size} bytes of width {width}" for size, width in sorted(shapes))
        raise BadTensorError(f"parts of one sum have {told}")
