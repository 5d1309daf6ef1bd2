"""How frames and passes die: quietly counted on a chain, with one answer to a call, as a VENT to the host.

Drafts are best effort: on a chain nobody reports them (`docs/protocol.md`, *Epochs*).
"""

from __future__ import annotations

from aeonflow.errors import AeonflowError, BadTensorError, CallError, OverloadedError
from aeonflow.frames import Buffer
from aeonflow.tensors import Kind, Tensor

from .counters import Counters
from .outbox import Outbox
from .outgoing import Caller
from .queue import Job
from .session import Session
from .sessions import SessionTable


class Failures:
    """Counts what dies and tells whoever must know."""

    def __init__(self, sessions: SessionTable, outbox: Outbox, counters: Counters) -> None:
        self._sessions = sessions
        self._outbox = outbox
        self._events = counters.events

    def drop(self, session: Session, head: Tensor, caller: Caller | None, stream: int, event: str, why: str) -> None:
        """Count what dies quietly on a chain; a call gets its one answer."""
        self._events[event] += 1
        if caller is not None:
            error = CallError(f"session {session.id} {why}: epoch {head.epoch}, rows from {head.first} are dropped")
            self._outbox.vent(session, head, error, caller=caller, stream=stream, layer=head.layer)

    def drop_job(self, job: Job, event: str, why: str) -> None:
        """The same for a job."""
        self.drop(job.session, job.head, job.caller, job.stage.stream, event, why)

    def fail(
        self, session: Session, head: Tensor, stream: int, layer: int, caller: Caller | None, error: AeonflowError
    ) -> None:
        """An error of a pass: to its caller, or to the host of the session."""
        if isinstance(error, OverloadedError):
            self._events["overloads"] += 1
        if head.kind != Kind.CANONICAL and caller is None:
            self._events["drafts_dropped"] += 1
            return
        self._outbox.vent(session, head, error, caller=caller, stream=stream, layer=layer)

    def fail_job(self, job: Job, layer: int, error: AeonflowError) -> None:
        """The same for a job."""
        self.fail(job.session, job.head, job.stage.stream, layer, job.caller, error)

    def unreadable(self, caller: Caller, payload: Buffer, is_host: bool, error: BadTensorError) -> None:
        """A payload that is no tensor message: a host is told; of another station's, the session's host if it shows."""
        self._events["bad_messages"] += 1
        if is_host:
            self._outbox.refuse(caller, error)
            return
        session = self._sessions.get(int.from_bytes(bytes(memoryview(payload)[:8]), "little"))
        if session is not None:
            self._outbox.vent_session(session, caller.stream, error)


def kernel_error(error: Exception) -> AeonflowError:
    """What a kernel raised, as an error of the wire."""
    if isinstance(error, AeonflowError):
        return error
    if isinstance(error, MemoryError):
        return OverloadedError("no memory for the computation of this pass")
    return CallError(f"the kernels failed: {type(error).__name__}: {error}")
