"""One session on the wire as the host sees it: epoch, base, rows sent and rows answered. Synchronous, no IO of its own.

A pass leaves through a `Passage` (chain or relay) and comes back as an `Answer`; what belongs to an older epoch is
dropped here. `length` counts the rows that every station is known to hold: a new epoch may begin there or below,
never above, whatever was still under way.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from aeonflow.errors import AeonflowError, PoisonedError, RemoteProtocolError, RollbackError
from aeonflow.kv_options import Barrier, KvOptions, is_barrier, next_barrier
from aeonflow.messages import Route, TraceEvent
from aeonflow.tensors import Kind, Port, Tensor, Want
from aeonflow.trace import Recorder, What

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


class Pass(msgspec.Struct, frozen=True):
    """Rows `first` … `first + rows - 1` of a session on their way; `ids` are their tokens, u32 little-endian.

    Every row below `settled` is final.
    """

    session: int
    epoch: int
    base: int
    settled: int
    first: int
    rows: int
    want: Want
    ids: bytes
    grow: bool = False  # a draft is to grow from it (Pair X)

    @property
    def last(self) -> int:
        return self.first + self.rows - 1

    def tensor(
        self, *, layer: int, port: Port, options: int, dtype: int, route: int, hop: int, dim0: int, dim1: int, data: Any
    ) -> Tensor:
        """A tensor of this pass."""
        return Tensor(
            self.session, self.epoch, self.base, self.settled, self.first, self.rows, layer, Kind.CANONICAL, port,
            options, dtype, route, hop, dim0, dim1, data,
        )  # fmt: skip


class Answer(NamedTuple):
    """What the head said of a pass: `logits` f32 [1 or rows, vocabulary], None for an acknowledgement.

    `hops` one-way link crossings on the critical path, `num_bytes` of frames that crossed the host's own links.
    """

    last: int
    logits: F32 | None
    hops: int
    num_bytes: int


class DraftAnswer(NamedTuple):
    """What a draft's head said of the row at `position`: likeliest ids u32 [K] and their logits f32 [K], falling."""

    position: int
    ids: U32
    logits: F32


class Detour(NamedTuple):
    """Rows from `first` on go without the residual seeds that were asked for; `why`, in words."""

    first: int
    why: str


class Passage(Protocol):
    """A way through the stations: the answer comes to `sequence.answered`, an error to `sequence.failed`."""

    route: Route

    def send(self, sequence: TokenSequence, one: Pass) -> None:
        """Send without waiting. Raises the link's error when the first message cannot be sent."""
        ...


class TokenSequence:
    """One session. `tokens` are the ids of all rows sent, `length` how many of them are answered for.

    Several passes may be under way; answers that overtake an older one wait for it, so `on_answer` sees them in order.
    Rows that turn out not to be what the text goes on with are taken back by `reject`, or by a new epoch.

    `barriers` are the positions at which some station's caches change form: no pass crosses one, and what lies below
    the last one passed cannot be restored by cutting. `is_cut_too_deep` after an epoch that would need it, and until
    they have said so where a resumption was broken off: stations must be asked what they hold (`Network.resume`) before
    anything is sent.
    """

    def __init__(self, session: int, passage: Passage, clock: Callable[[], float]) -> None:
        self.session = session
        self.epoch = 1
        self.base = 0
        self.tokens = array("I")
        self.length = 0
        self.max_positions = 0
        self.kv = KvOptions()
        self.barriers: tuple[Barrier, ...] = ()
        self.is_cut_too_deep = False
        self.is_poisoned = False  # at some station, until the next epoch
        self.detour: Detour | None = None
        self.passage = passage  # the way of this epoch's passes
        self.incarnations: tuple[int, ...] = ()
        self.is_closed = False
        self.is_suspect = False  # overdue, and being looked into
        self.progress_s = 0.0
        self.partial: dict[int, list[Tensor]] = {}
        self.draft_parts: dict[int, Sequence[Tensor]] = {}  # of the newest draft, by head part
        self.on_answer: Callable[[Answer], None] = _nobody_listens
        self.on_error: Callable[[AeonflowError], None] = _nobody_cares
        self.on_draft: Callable[[DraftAnswer], None] = _nobody_drafts
        self.trace: Recorder | None = None  # while a trace is recorded
        self._sent_s: dict[int, tuple[float, int]] = {}  # last position → when a pass left, its first: of a trace only
        self._clock = clock
        self._in_flight: deque[int] = deque()
        self._early: dict[int, Answer] = {}  # answers that overtook an older pass, by last position
        self._form_position = 0  # below, what stations hold cannot be told from what came since: a barrier, mostly

    @property
    def oldest_in_flight(self) -> int | None:
        """Last position of the oldest pass that is not answered, None when nothing is under way."""
        return self._in_flight[0] if self._in_flight else None

    def is_awaited(self, last: int) -> bool:
        """Is a pass that ends at position `last` under way?"""
        return last in self._in_flight

    def room(self) -> int | None:
        """Rows that the next pass may have without crossing a state barrier; None: any number."""
        at = next_barrier(self.barriers, len(self.tokens))
        return None if at is None else at - len(self.tokens)

    def starts_at_barrier(self) -> bool:
        """Would the next pass start at a state barrier? It may be sent only once every row before it is final."""
        return is_barrier(self.barriers, len(self.tokens))

    def send(self, ids: Sequence[int], want: Want, *, settled: int | None = None, grow: bool = False) -> None:
        """The next rows, right behind those sent before. `settled`: rows below it are final (None: all sent before);
        a pass that starts at a barrier waits until everything before it is."""
        first = len(self.tokens)
        packed = array("I", ids)
        final = first if settled is None else settled
        if self.barriers:
            room = self.room()
            if room is not None and len(packed) > room:
                raise AssertionError(f"{len(packed)} rows at {first}: the next state barrier is {room} rows on")
            if is_barrier(self.barriers, first):
                if final < first:
                    raise AssertionError(f"a pass at the state barrier {first} over rows settled below {final} only")
                self._form_position = first
            if self.kv.keeps_mass:  # masses of final rows join those of others: stations cannot take them back
                self._form_position = max(self._form_position, final)
        one = Pass(self.session, self.epoch, self.base, final, first, len(packed), want, packed.tobytes(), grow)
        self.tokens.extend(packed)
        if not self._in_flight:
            self.progress_s = self._clock()
        self._in_flight.append(one.last)
        if self.trace is not None:
            self._sent_s[one.last] = (self.trace.clock(), first)
        self.passage.send(self, one)

    def can_restart(self, base: int) -> bool:
        """Whether stations can cut to `base`: no change of form lies above it."""
        return base >= self._form_position

    def restart(self, base: int) -> None:
        """A new epoch from `base` on; rows at or above it are void, answers under way will be stale."""
        if not 0 <= base <= self.length:
            raise AssertionError(f"epoch with base {base} over {self.length} answered rows")
        self.epoch += 1
        self.is_poisoned = False
        self.base = self.length = base
        self.is_cut_too_deep = self.is_cut_too_deep or base < self._form_position
        if self.detour is not None and base < self.detour.first:  # rows from here on are computed anew, by that way
            self.detour = self.detour._replace(first=base)
        del self.tokens[base:]
        self._forget_passes()

    def begin_resumption(self, base: int) -> None:
        """A new epoch from `base` on in which stations are asked what they hold; nothing is sent before `resumed`."""
        self.restart(base)
        self.is_cut_too_deep = True

    def reject(self, length: int) -> None:
        """Rows from `length` on are not what the text goes on with: they count as not answered for, and the next epoch
        begins at `length` or below."""
        self.length = min(self.length, length)

    @property
    def is_tidy(self) -> bool:
        """Is nothing under way, and every row that was sent answered for?"""
        return not self._in_flight and self.length == len(self.tokens)

    def resumed(self) -> None:
        """All stations hold the rows below `base`, and no others."""
        self.is_cut_too_deep = False
        self._form_position = min(self._form_position, self.base)

    def use(self, passage: Passage) -> None:
        """Another way through the stations from the next epoch on (routes were installed anew, or seeds failed)."""
        self.passage = passage

    def is_current(self, epoch: int) -> bool:
        """Does something of `epoch` still matter here?"""
        return epoch == self.epoch and not self.is_closed

    def answered(self, answer: Answer) -> None:
        """An answer of this epoch: passes are answered in the order they were sent; a duplicate is dropped."""
        if answer.last < self.length or answer.last in self._early:
            return
        if answer.last not in self._in_flight:
            expected = self._in_flight[0] if self._in_flight else "none"
            self.failed(RemoteProtocolError(f"an answer for position {answer.last}, expected {expected}"))
            return
        self._early[answer.last] = answer
        while self._in_flight and self._in_flight[0] in self._early:
            self._deliver(self._early.pop(self._in_flight.popleft()))

    def _deliver(self, answer: Answer) -> None:
        self.length = answer.last + 1
        self.progress_s = self._clock()
        if self.trace is not None and answer.last in self._sent_s:
            sent_s, first = self._sent_s.pop(answer.last)
            self._record(What.WAIT, sent_s, self.trace.clock(), first, answer.last + 1 - first)
        self.on_answer(answer)

    def failed(self, error: AeonflowError) -> None:
        """The passes under way will not be answered. The rows below `length` are still good."""
        self._forget_passes()
        self.is_cut_too_deep = self.is_cut_too_deep or isinstance(error, RollbackError)
        self.is_poisoned = self.is_poisoned or isinstance(error, PoisonedError)
        self.on_error(error)

    def failed_if_current(self, epoch: int, error: AeonflowError) -> None:
        """`failed`, unless what the error is about has ended or been answered since."""
        if self.is_current(epoch) and self._in_flight:
            self.failed(error)

    def _forget_passes(self) -> None:
        self._sent_s.clear()
        self._in_flight.clear()
        self._early.clear()
        self.partial.clear()
        self.draft_parts.clear()

    def record_choice(self, began_s: float, position: int) -> None:
        """For a trace: the token at `position` was being chosen from `began_s` until now."""
        if self.trace is not None:
            self._record(What.SAMPLE, began_s, self.trace.clock(), position, 1)

    def _record(self, what: What, began_s: float, ended_s: float, first: int, rows: int) -> None:
        if self.trace is not None:
            self.trace.add(TraceEvent(int(what), began_s, ended_s, 0, 0, 0, self.session, self.epoch, first, rows))


def _nobody_listens(answer: Answer) -> None:
    return None


def _nobody_cares(error: AeonflowError) -> None:
    return None


def _nobody_drafts(answer: DraftAnswer) -> None:
    return None
