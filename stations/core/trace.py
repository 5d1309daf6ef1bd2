"""Traces of a station: who asked for one, and what is recorded of the batches (stream af50, `docs/tracing.md`)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from aeonflow.errors import AeonflowError, BadMessageError, OverloadedError, UnsupportedError
from aeonflow.frames import Buffer
from aeonflow.messages import (
    Clock,
    GetClock,
    GetTrace,
    StartTrace,
    StopTrace,
    TraceEvent,
    TraceEvents,
    TraceReply,
    decode_trace_request,
    encode,
)
from aeonflow.trace import MAX_EVENTS, Recorder, What

from .batch import Batch
from .outbox import Outbox
from .outgoing import Caller
from .queue import JobQueue

MAX_EVENTS_A_REPLY = 16384  # of about 70 bytes: well below the smallest limit of a message
_COMPUTE = int(What.COMPUTE)


class Traces:
    """At most one trace at a time, of the host whose link asked for it. `clock` None: the station has no clock."""

    def __init__(self, queue: JobQueue, outbox: Outbox) -> None:
        self.clock: Callable[[], float] | None = None
        self.recorder: Recorder | None = None
        self._queue = queue
        self._outbox = outbox
        self._owner = 0

    def receive(self, caller: Caller, payload: Buffer) -> None:
        """Carry out a request and answer it; errors are answered as VENTs."""
        try:
            reply = self._carry_out(_decode(payload), caller.link)
        except AeonflowError as error:
            self._outbox.refuse(caller, error)
            return
        self._outbox.answer(caller, [encode(reply)])

    def link_closed(self, link: int) -> None:
        """A host is gone, and its trace with it."""
        if link == self._owner:
            self._stop()

    def _carry_out(self, request: StartTrace | GetClock | GetTrace | StopTrace, link: int) -> TraceReply:
        clock = self.clock
        if clock is None:
            raise UnsupportedError("this station has no clock: it records no traces")
        if isinstance(request, GetClock):
            return Clock(clock())
        if self.recorder is not None and link != self._owner:
            raise OverloadedError("another host traces this station: 1 trace at a time")
        if isinstance(request, StartTrace):
            if not 1 <= request.max_events <= MAX_EVENTS:
                raise BadMessageError(f"a trace of {request.max_events} events: 1 to {MAX_EVENTS:,} can be kept")
            self.recorder = Recorder(request.max_events, clock)
            self._owner = link
            self._queue.clock = clock
            return Clock(clock())
        if isinstance(request, StopTrace):
            self._stop()
            return Clock(clock())
        if self.recorder is None:
            raise BadMessageError("no trace was started")
        events = self.recorder.take(max(0, min(request.max_events, MAX_EVENTS_A_REPLY)))
        return TraceEvents(events, len(self.recorder), self.recorder.dropped)

    def _stop(self) -> None:
        self.recorder = None
        self._owner = 0
        self._queue.clock = None


def record_batch(recorder: Recorder, batch: Batch, began_s: float, ended_s: float) -> None:
    """One event for every pass of a kernel call."""
    stage = batch.stage
    recorder.num_batches += 1
    for job in batch.jobs:
        head = job.head
        recorder.add(
            TraceEvent(
                _COMPUTE, began_s, ended_s, stage.stream, stage.layer, stage.hi, head.session, head.epoch, head.first,
                head.rows, part=stage.part, num_bytes=job.num_bytes, queued_s=job.queued_s or began_s,
                batch=recorder.num_batches, kind=head.kind,
            )
        )  # fmt: skip


def _decode(payload: Buffer) -> StartTrace | GetClock | GetTrace | StopTrace:
    try:
        return decode_trace_request(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadMessageError(f"trace request of {memoryview(payload).nbytes} bytes cannot be read: {error}") from None
