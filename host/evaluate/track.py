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
        sequence = self._sequence
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        last = len(sequence.tokens) + len(ids) - 1
        parts: list[F32] = []
        ended_s = 0.0

        def on_answer(answer: Answer) -> None:
            nonlocal ended_s
            if answer.logits is not None:
                parts.append(answer.logits)
            if answer.last == last and not answered.done():
                ended_s = time.perf_counter()
                answered.set_result(None)

        def on_error(error: AeonflowError) -> None:
            if not answered.done():
                answered.set_exception(error)

        sequence.on_answer, sequence.on_error = on_answer, on_error
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        at = 0
        while at < len(ids):
            room = sequence.room()
            rows = min(len(ids) - at, self._max_rows, len(ids) if room is None else room)
            sequence.send(ids[at : at + rows], want)
            at += rows
        await answered
        self.pace.add(len(ids), ended_s - began_s, time.process_time() - began_cpu_s)
        if want is Want.NONE:
            return None
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


async def open_track(network: Network, num_rows: int, kv: KvOptions, pace: Pace) -> Track:
    """A session for `num_rows` rows on every station. Raises the first station's refusal."""
    return Track(network, await network.open(num_rows, kv), pace)


async def kv_bytes(network: Network) -> int:
    """Bytes of KV that the stations hold now, for all sessions."""
    asked = [(station, station.ask(Stats())) for station in network.stations]
    replies = await gather(asked, CONTROL_TIMEOUT_S, "stats")
    return sum(int(reply.values["kv_bytes"]) for reply in replies if isinstance(reply, StatsReply))
