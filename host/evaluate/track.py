"""One session of an evaluation: fed rows in step with others, cut at its own state barriers, timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aeonflow.errors import AeonflowError, RemoteProtocolError
from aeonflow.kv_options import KvOptions
from aeonflow.messages import Stats, StatsReply
from aeonflow.tensors import Want

from ..links import CONTROL_TIMEOUT_S, gather
from ..network import Network
from ..sequence import Answer, TokenSequence

F32 = npt.NDArray[np.float32]

MAX_ROWS = 256  # rows of a pass whose logits nobody wants
MAX_IN_FLIGHT = 32  # passes; stations queue them


class Pace:
    """Rows and seconds of passes of several rows; of each pass of one row its seconds, and this process' own ones.

    In solo the latter are all that a row costs, whatever else the machine does.
    """

    def __init__(self) -> None:
        self.prefill_rows = 0
        self.prefill_s = 0.0
        self.row_s: list[float] = []
        self.row_cpu_s: list[float] = []

    def add(self, rows: int, seconds: float, cpu_s: float) -> None:
        if rows == 1:
            self.row_s.append(seconds)
            self.row_cpu_s.append(cpu_s)
        else:
            self.prefill_rows += rows
            self.prefill_s += seconds


class Track:
    """An open session with KV as `kv` wants it. Made by `open_track`; `close` it."""

    def __init__(self, network: Network, sequence: TokenSequence, pace: Pace) -> None:
        self._network = network
        self._sequence = sequence
        self.pace = pace
        self._max_rows = min([MAX_ROWS, *(s.hello.limits.max_rows or MAX_ROWS for s in network.stations)])

    async def feed(self, ids: Sequence[int], want: Want) -> F32 | None:
        """The next rows, all of them answered for: logits f32 [rows, vocabulary] of Want.ALL, [1, vocabulary] of
        Want.LAST, None of Want.NONE.

        Passes end at state barriers. Raises what a station says of them.
        """
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        feeding = _Feeding(self._sequence, ids, want, self._max_rows)
        await feeding.done
        self.pace.add(len(ids), feeding.ended_s - began_s, time.process_time() - began_cpu_s)
        if want is Want.NONE:
            return None
        parts = feeding.logits
        if want is Want.LAST:
            return parts[-1]
        logits = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if len(logits) != len(ids):
            raise RemoteProtocolError(f"{len(logits)} rows of logits for {len(ids)} rows")
        return logits

    async def close(self) -> int:
        """End the session; returns the bytes of KV that the stations held for it. Others must rest meanwhile."""
        before = await kv_bytes(self._network)
        self._network.close_session(self._sequence)
        return before - await kv_bytes(self._network)

    def abandon(self) -> None:
        """End the session at once. Idempotent."""
        self._network.close_session(self._sequence)


class _Feeding:
    """Rows on their way, as many passes as state barriers make of them, at most `MAX_IN_FLIGHT` unanswered."""

    def __init__(self, sequence: TokenSequence, ids: Sequence[int], want: Want, max_rows: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.logits: list[F32] = []
        self.ended_s = 0.0
        self._sequence = sequence
        self._ids = ids
        self._want = want
        self._max_rows = max_rows
        self._sent = self._in_flight = 0
        sequence.on_answer, sequence.on_error = self._answered, self._fail
        self._send()

    def _send(self) -> None:
        while self._in_flight < MAX_IN_FLIGHT and (left := len(self._ids) - self._sent):
            room = self._sequence.room()
            rows = min(left, self._max_rows, left if room is None else room)
            self._sequence.send(self._ids[self._sent : self._sent + rows], self._want)
            self._sent += rows
            self._in_flight += 1

    def _answered(self, answer: Answer) -> None:
        self._in_flight -= 1
        if answer.logits is not None:
            self.logits.append(answer.logits)
        try:
            self._send()
        except AeonflowError as error:  # a link that broke: who waits must hear of it, not the reader of another
            self._fail(error)
        if not self._in_flight and not self.done.done():
            self.ended_s = time.perf_counter()
            self.done.set_result(None)

    def _fail(self, error: AeonflowError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def open_track(network: Network, num_rows: int, kv: KvOptions, pace: Pace) -> Track:
    """A session for `num_rows` rows on every station. Raises the first station's refusal."""
    return Track(network, await network.open(num_rows, kv), pace)


async def kv_bytes(network: Network) -> int:
    """Bytes of KV that the stations hold now, for all sessions."""
    asked = [(station, station.ask(Stats())) for station in network.stations]
    replies = await gather(asked, CONTROL_TIMEOUT_S, "stats")
    return sum(int(reply.values["kv_bytes"]) for reply in replies if isinstance(reply, StatsReply))
