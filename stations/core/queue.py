"""The compute queue: what waits, and what goes together. One batch at a time is taken; nothing waits to fill one.

Canonical before draft. A batch has one role and layer, jobs of any sessions: all decode rows that wait there and at
most one prefill chunk. Decode goes first, but a prefill chunk is passed over `max_passed_over` times at most, so it
never starves. Rows of one session at one stage keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from aeonflow.tensors import Kind, Tensor

from .limits import StationLimits
from .outgoing import Caller
from .session import Session
from .stages import CompiledRoute, Stage, StageKey

Array = npt.NDArray[Any]
_CANONICAL = int(Kind.CANONICAL)


class Job:
    """The rows of one pass at one stage. `head` carries the pass (epoch, first, rows, options, hop…).

    `queued_s`: when it began to wait, 0 while nobody traces.
    """

    __slots__ = ("caller", "head", "inputs", "num_bytes", "queued_s", "route", "session", "stage")

    def __init__(
        self,
        stage: Stage,
        route: CompiledRoute,
        session: Session,
        head: Tensor,
        inputs: tuple[Array, ...],
        caller: Caller | None,
    ) -> None:
        self.stage = stage
        self.route = route
        self.session = session
        self.head = head
        self.inputs = inputs
        self.caller = caller
        self.queued_s = 0.0
        self.num_bytes = inputs[0].nbytes if len(inputs) == 1 else sum(array.nbytes for array in inputs)


class JobQueue:
    """Jobs by stage. `length` counts them, `num_bytes` their inputs."""

    def __init__(self, limits: StationLimits) -> None:
        self._max_decode_rows = limits.max_decode_rows
        self._max_batch_rows = limits.max_batch_rows
        self._max_passed_over = limits.max_passed_over
        self._decode: dict[StageKey, deque[Job]] = {}  # stages in the order they came to wait
        self._prefill: dict[StageKey, deque[Job]] = {}
        self._draft: dict[StageKey, deque[Job]] = {}
        self._only: Job | None = None  # the job, while it is the only one: most batches never see a lane
        self._passed_over = 0
        self.clock: Callable[[], float] | None = None  # while a trace is recorded
        self.length = 0
        self.num_bytes = 0

    def push(self, job: Job) -> None:
        """Put a job behind what waits at its stage."""
        self.num_bytes += job.num_bytes
        self.length += 1
        job.session.queued += 1
        if job.head.kind != _CANONICAL:
            job.session.queued_drafts += 1
        if self.clock is not None:
            job.queued_s = self.clock()
        if self.length == 1:
            self._only = job
            return
        if self._only is not None:
            self._line_up(self._only)
            self._only = None
        self._line_up(job)

    def _line_up(self, job: Job) -> None:
        key, session, head = job.stage.key, job.session, job.head
        if head.kind != _CANONICAL:
            lanes = self._draft
        elif head.rows > self._max_decode_rows or key in session.prefills:
            lanes = self._prefill
            session.prefills[key] = session.prefills.get(key, 0) + 1
        else:
            lanes = self._decode
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = deque()
        lane.append(job)

    def take(self) -> list[Job]:
        """The next batch, empty when nothing waits."""
        only = self._only
        if only is not None:
            self._only = None
            self._taken(only)
            return [only]
        if self._decode and not (self._prefill and self._passed_over >= self._max_passed_over):
            key = next(iter(self._decode))
        elif self._prefill:
            key = next(iter(self._prefill))
        elif self._draft:
            return self._take_rows(self._draft, next(iter(self._draft)), [])
        else:
            return []
        jobs = self._take_rows(self._decode, key, []) if key in self._decode else []
        if key in self._prefill:
            self._take_prefill(key, jobs)
            self._passed_over = 0
        elif self._prefill:
            self._passed_over += 1
        return jobs

    def drop(self, is_void: Callable[[Job], bool]) -> list[Job]:
        """Remove and return the jobs for which `is_void` holds."""
        dropped: list[Job] = []
        if self._only is not None:
            self._line_up(self._only)
            self._only = None
        for lanes in (self._decode, self._prefill, self._draft):
            for key in list(lanes):
                void = [job for job in lanes[key] if is_void(job)]
                if not void:
                    continue
                gone = set(map(id, void))
                kept = deque(job for job in lanes[key] if id(job) not in gone)
                if kept:
                    lanes[key] = kept
                else:
                    del lanes[key]
                for job in void:
                    self._taken(job)
                    if lanes is self._prefill:
                        self._prefill_taken(job)
                dropped += void
        return dropped

    def _take_rows(self, lanes: dict[StageKey, deque[Job]], key: StageKey, jobs: list[Job]) -> list[Job]:
        """All jobs of a lane that may share a call; at a cache one a session, as each appends to its own."""
        lane = lanes.pop(key)
        if len(lane) == 1:
            jobs.append(lane[0])
            self._taken(lane[0])
            return jobs
        rows = 0
        left: deque[Job] = deque()
        blocked: set[int] = set()  # sessions of which nothing more may go, lest it overtakes or meets itself
        once = lane[0].stage.has_cache
        for job in lane:
            if (jobs and rows + job.head.rows > self._max_batch_rows) or job.session.id in blocked:
                left.append(job)
                blocked.add(job.session.id)
                continue
            if once:
                blocked.add(job.session.id)
            rows += job.head.rows
            jobs.append(job)
            self._taken(job)
        if left:
            lanes[key] = left  # at the end: other stages come first
        return jobs

    def _take_prefill(self, key: StageKey, jobs: list[Job]) -> None:
        lane = self._prefill[key]
        if lane[0].stage.has_cache and any(job.session is lane[0].session for job in jobs):
            return
        job = lane.popleft()
        del self._prefill[key]
        if lane:
            self._prefill[key] = lane
        jobs.append(job)
        self._taken(job)
        self._prefill_taken(job)

    def _prefill_taken(self, job: Job) -> None:
        prefills, key = job.session.prefills, job.stage.key
        if prefills[key] == 1:
            del prefills[key]
        else:
            prefills[key] -= 1

    def _taken(self, job: Job) -> None:
        job.session.queued -= 1
        if job.head.kind != _CANONICAL:
            job.session.queued_drafts -= 1
        self.length -= 1
        self.num_bytes -= job.num_bytes
