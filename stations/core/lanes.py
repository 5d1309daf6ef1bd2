"""Lanes: what a decoded row of one session needs at one stage, settled once, so that a row costs its arithmetic.

A lane knows the head of the only messages it takes, byte for byte but for the row's place and hops; the compiled call
that computes from them; the frames that its outputs leave in; and where those go. It takes a message whole or not at
all: whatever is unusual is left to the general path (`arrivals` … `departures`), which does the same with every check.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from aeonflow.errors import LinkClosedError
from aeonflow.frames import HEADER, HEADER_BYTES, Flags
from aeonflow.messages import Limits
from aeonflow.tensors import PREFIX, PREFIX_BYTES, DType, Tensor

from ..kernels.base import PreparedRow
from ..kv.errors import KvFormError
from ..kv.layer_cache import LayerKvCache
from .queue import Job

HEAD_BYTES = HEADER_BYTES + PREFIX_BYTES
PLACE = HEADER_BYTES + 16  # where settled and first stand, which change from row to row
HOP = HEADER_BYTES + 36
_PLACE = struct.Struct("<II")


class Sender(Protocol):
    """A connection."""

    @property
    def limits(self) -> Limits: ...

    def send_packed(self, frame: memoryview) -> None: ...


class Exit(NamedTuple):
    """Where an output goes: over `link` in `frame`; `keep` holds it until there is another link, None: nobody does."""

    link: Sender
    frame: memoryview
    keep: Keeper | None


class Keeper(Protocol):
    """A successor, with or without a connection."""

    def keep_packed(self, frame: memoryview, session: int) -> None: ...


class Cost(Protocol):
    """What rows like these take: decides between here and the compute thread."""

    seconds: float

    def learn(self, seconds: float, samples: int = 1) -> None: ...


def lane_key(message: bytes) -> bytes:
    """What must be equal in messages of one lane: all of the head but sequence, settled, first and hop."""
    return message[:2] + message[6:26] + message[34:46] + message[48:58]


def row_head(
    head: Tensor, stream: int, layer: int, port: int, width: int, *, options: int, flags: int = Flags.FIN,
    dtype: int = DType.F32,
) -> bytes:  # fmt: skip
    """The head of a message that holds one row of a pass like that of `head`; sequence, place and hop are 0."""
    size = PREFIX_BYTES + 4 * width
    prefix = PREFIX.pack(
        head.session, head.epoch, head.base, 0, 0, 1, layer, head.kind, port, options, dtype, head.route, 0, 2, 1, width
    )
    return HEADER.pack(stream, 0, flags, size >> 16, size & 0xFFFF) + prefix


class Lane:
    """One stage of one session in one epoch, and its input where that is one. `num_bytes`: of a message with a row of
    that; `rows` and `took_ns` count what went through, `take_counts` what did since it was last asked.

    `limit`: positions from there on need the general path, which makes room; the lane is then made anew.
    """

    def __init__(
        self, job: Job, prepared: PreparedRow, cache: LayerKvCache | None, exits: Sequence[Exit], cost: Cost,
        limit_s: float,
    ) -> None:  # fmt: skip
        self.lane = self  # as of `JoinedInput`
        self.num_bytes = 0
        self.session = job.session
        self.stage = job.stage
        self.epoch = job.head.epoch
        self.limit = min(prepared.limit, job.session.max_positions)
        self.rows = 0
        self.took_ns = 0
        self._told = (0, 0)
        self._learnt_rows = 0  # of these, what the cost knows of
        self._learnt_ns = 0
        self._prepared = prepared  # kept alive: compiled code holds addresses of its memory
        self._run = prepared.run
        self._result = prepared.took_ns
        self._cache = cache
        self._exits = tuple(exits)
        self._place = job.stage.place
        self._cost = cost
        self._limit_ns = int(limit_s * 1e9)

    def take(self, link: int, message: bytes, now: float) -> bool:
        """Take a message that has this lane's key and size; False: the general path must."""
        session = self.session
        settled, first = _PLACE.unpack_from(message, PLACE)
        if session.epoch != self.epoch or session.is_poisoned or session.is_closed or first >= self.limit:
            return False
        return self.compute(message, None, settled, first, now)

    def take_counts(self) -> tuple[int, int]:
        """Rows, and nanoseconds of their compute."""
        told_rows, told_ns = self._told
        self._told = self.rows, self.took_ns
        return self.rows - told_rows, self.took_ns - told_ns

    @property
    def is_past(self) -> bool:
        """No row of this lane will come any more."""
        return self.session.is_closed or self.session.epoch != self.epoch

    def place_of(self, message: bytes) -> tuple[int, int]:
        """(settled, first) of a message for this lane; first −1 where the general path must see it."""
        session = self.session
        settled, first = _PLACE.unpack_from(message, PLACE)
        if session.epoch != self.epoch or session.is_poisoned or session.is_closed or first >= self.limit:
            return settled, -1
        return settled, first

    def compute(self, message: bytes, other: bytes | None, settled: int, first: int, now: float) -> bool:
        """Compute and send on; False, and nothing has changed, where the general path must do it."""
        cache, session = self._cache, self.session
        if cache is not None and not self._reserve(cache, settled, first):
            return False
        self._run(message, other)
        took_ns = self._result[0]
        if took_ns < 0:
            return False
        if cache is not None:
            cache.commit(1)
        self.rows += 1
        self.took_ns += took_ns
        if took_ns > self._limit_ns:
            self._was_long(took_ns)
        session.passed[self._place] = first + 1
        session.last_used_s = now
        for link, frame, keep in self._exits:
            try:
                link.send_packed(frame)
            except LinkClosedError:  # its on_close is on the way
                if keep is not None:
                    keep.keep_packed(frame, session.id)
        return True

    def _reserve(self, cache: LayerKvCache, settled: int, first: int) -> bool:
        session = self.session
        if cache.pos_len != first or session.caches.get(self.stage.layer) is not cache:
            return False
        if settled > session.settled:
            session.settled = settled
        try:
            cache.reserve(1)
        except (KvFormError, MemoryError):  # the general path tells the host
            return False
        return True

    def _was_long(self, took_ns: int) -> None:
        """The short rows since the last long one count as well: on a busy machine one in a hundred is preempted."""
        num_short = self.rows - 1 - self._learnt_rows
        if num_short:
            self._cost.learn((self.took_ns - took_ns - self._learnt_ns) * 1e-9 / num_short, num_short)
        self._cost.learn(took_ns * 1e-9)
        self._learnt_rows, self._learnt_ns = self.rows, self.took_ns
        if self._cost.seconds * 1e9 > self._limit_ns:
            self.limit = 0  # it has become a case for the compute thread


class JoinedInput:
    """One of the two inputs of a lane (u and h at down): the first to come waits here for the other.

    `message` is what waits, from `link`, of the row at `first`. Parts that met elsewhere, or came twice, are for the
    general path and its joins.
    """

    __slots__ = ("_is_first_input", "first", "lane", "link", "message", "num_bytes", "other")

    def __init__(self, lane: Lane, num_bytes: int, *, is_first_input: bool) -> None:
        self.num_bytes = num_bytes
        self.other = self
        self.message: bytes | None = None
        self.link = 0
        self.first = 0
        self.lane = lane
        self._is_first_input = is_first_input

    def take(self, link: int, message: bytes, now: float) -> bool:
        """As of `Lane`."""
        lane, other = self.lane, self.other
        settled, first = lane.place_of(message)
        if first < 0:
            return False
        held, joins, key = other.message, lane.session.joins, lane.stage.key
        if held is None:
            if self.message is not None or not joins.is_fresh(key, 0, first):
                return False
            self.message, self.link, self.first = message, link, first
            lane.session.last_used_s = now
            return True
        if other.first != first:
            return False
        inputs = (message, held) if self._is_first_input else (held, message)
        if not lane.compute(*inputs, settled, first, now):
            return False
        other.message = None
        joins.skip(key, 0, first)
        return True
