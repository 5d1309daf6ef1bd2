"""Chain: ids go in at the embed stations, each station sends on to the next, the head's parts answer the host.

Encodes the passes and puts the answers of the head's parts together; where a pass travels in between is the
stations' business (`aeonflow.route`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np

from aeonflow import bands
from aeonflow.assembly import Message
from aeonflow.errors import BadTensorError
from aeonflow.frames import HEADER_BYTES
from aeonflow.messages import Route
from aeonflow.tensors import PREFIX_BYTES, DType, Kind, Port, Tensor, options_byte, pack_tensors, unpack_tensors

from .links import StationLink
from .sequence import Answer, Pass, TokenSequence
from .speculate.candidates import collect_draft


class ChainPassage:
    """Passes along an installed route. `route_id`: what sessions are opened with; `streams` that come here unasked."""

    streams: Container[int] = (bands.HEAD,)

    def __init__(self, route: Route, stations: Sequence[StationLink], vocab_size: int) -> None:
        self.route = route
        self.route_id = route.route
        self._vocab_size = vocab_size
        self._head_parts = sum(1 for c in route.carriers if c.role == "head")
        self._is_remote = stations[0].is_remote
        first_parts = {c.station: c.part for c in reversed(route.carriers) if c.role == "embed"}
        self._embeds = [(stations[index], part) for index, part in first_parts.items()]

    def send(self, sequence: TokenSequence, one: Pass) -> None:
        """Ids to every station that embeds: one message serves all the parts it carries."""
        for station, part in self._embeds:
            tensor = one.tensor(
                layer=0,
                port=Port.IDS,
                options=options_byte(grow=one.grow, want=one.want, part=part),
                dtype=DType.U32,
                route=self.route.route,
                hop=int(station.is_remote),
                dim0=one.rows,
                dim1=1,
                data=one.ids,
            )
            station.send(bands.EMBED, pack_tensors([tensor]))

    def take(self, source: StationLink, message: Message, sequences: Mapping[int, TokenSequence]) -> bool:
        """A message of a station on one of `streams`. False and errors as of `receive`."""
        return self.receive(message.payload, sequences)

    def receive(self, payload: bytes | bytearray | memoryview, sequences: Mapping[int, TokenSequence]) -> bool:
        """An answer of a head part; the last part completes the pass, and nonsense fails its session.

        False for an answer to a past epoch or session. Raises BadTensorError for what cannot be read at all.
        """
        tensors = unpack_tensors(payload)
        (tensor, *more) = tensors
        sequence = sequences.get(tensor.session)
        if sequence is None or not sequence.is_current(tensor.epoch):
            return False
        if tensor.kind == Kind.DRAFT:
            draft = collect_draft(sequence, tensors, self._head_parts, self._vocab_size)
            if draft is not None:
                sequence.on_draft(draft)
            return True
        try:
            if more:
                raise BadTensorError(f"a head answered with {1 + len(more)} tensors, 1 is expected")
            answer = self._collect(sequence, tensor)
        except BadTensorError as error:
            sequence.failed(error)
            return True
        if answer is not None:
            sequence.answered(answer)
        return True

    def _collect(self, sequence: TokenSequence, tensor: Tensor) -> Answer | None:
        """The answer, once all head parts are there."""
        last = last_position(tensor)
        parts = [tensor]
        if self._head_parts > 1:
            if last < sequence.length:
                return None  # answered already
            if not sequence.is_awaited(last):  # what waits for its other parts was asked for, or it might for ever
                raise BadTensorError(f"a head part answered for position {last}, which was not asked for")
            parts = sequence.partial.setdefault(last, [])
            parts.append(tensor)
            if len(parts) < self._head_parts:
                return None
            del sequence.partial[last]
        return join_parts(last, parts, self._vocab_size, num_bytes=self._host_bytes(sequence, parts))

    def _host_bytes(self, sequence: TokenSequence, parts: Sequence[Tensor]) -> int:
        """Bytes of frames that crossed the host's own links for an answer of `sequence`."""
        if not self._is_remote:
            return 0
        answer_bytes = sum(len(part.data) for part in parts)
        return host_frame_bytes(len(self._embeds), len(parts), rows=parts[0].rows, answer_bytes=answer_bytes)


def host_frame_bytes(num_embeds: int, num_heads: int, *, rows: int, answer_bytes: int) -> int:
    """Bytes of the frames of one pass on the host's own links: ids to embed stations, answers of head parts."""
    frames = (num_embeds + num_heads) * (HEADER_BYTES + PREFIX_BYTES)
    return frames + num_embeds * 4 * rows + answer_bytes


def last_position(answer: Tensor) -> int:
    """Position of the last row that an answer (logits or acknowledgement) stands for."""
    if answer.port == Port.TOKEN and answer.dtype == DType.U32 and answer.dim0 == answer.dim1 == 1:
        return int.from_bytes(answer.data, "little") - 1
    if answer.port == Port.LOGITS and answer.dtype == DType.F32:
        return answer.first + answer.dim0 - 1
    raise BadTensorError(f"a head answered with port {answer.port} dtype {answer.dtype} {answer.dim0}x{answer.dim1}")


def join_parts(last: int, parts: Sequence[Tensor], vocab_size: int, *, num_bytes: int) -> Answer:
    """One answer from the head's parts, their logits side by side in the order of the parts.

    BadTensorError for parts that are no answers, or not of one kind and position.
    """
    hops = max(part.hop for part in parts)
    kinds = {(part.port, part.dim0, last_position(part)) for part in parts}
    if len(kinds) > 1 or last_position(parts[0]) != last:
        told = ", ".join(f"port {port} of {rows} rows up to {end}" for port, rows, end in sorted(kinds))
        raise BadTensorError(f"head parts for position {last} answered with {told}")
    if parts[0].port == Port.TOKEN:
        return Answer(last, None, hops, num_bytes)
    rows = [np.frombuffer(part.data, "<f4").reshape(part.dim0, part.dim1) for part in _in_order(parts)]
    logits = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
    if logits.shape[1] != vocab_size:
        widths = [part.dim1 for part in parts]
        raise BadTensorError(f"logits of widths {widths} make {sum(widths)}, the vocabulary has {vocab_size}")
    return Answer(last, logits, hops, num_bytes)


def _in_order(parts: Sequence[Tensor]) -> list[Tensor]:
    ordered = sorted(parts, key=lambda tensor: tensor.part)
    if [part.part for part in ordered] != list(range(len(ordered))):
        raise BadTensorError(
            f"head parts {[part.part for part in ordered]}: expected 0 to {len(ordered) - 1}, each once"
        )
    return ordered
