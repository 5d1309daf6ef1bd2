"""The watch over what is under way: passes without an answer for too long, and those that wait for a lost seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from .deadline import overdue, who_is_behind
from .links import StationLink
from .pairx.stalled import SEED_PATIENCE_S, StalledPasses
from .sequence import TokenSequence

WATCH_PERIOD_S = 1.0


class Watch:
    """Looks once a period, as long as there are sessions. `spawn` runs a coroutine beside everything else."""

    def __init__(
        self,
        sequences: Mapping[int, TokenSequence],
        stations: Callable[[], Sequence[StationLink]],
        *,
        deadline_s: float,
        clock: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._sequences = sequences
        self._stations = stations
        self._deadline_s = deadline_s
        self._period_s = min(WATCH_PERIOD_S, deadline_s / 4)
        self._stalled = StalledPasses(min(SEED_PATIENCE_S, deadline_s / 4))
        self._clock = clock
        self._spawn = spawn
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def start(self) -> None:
        """There is a session to look after. Idempotent."""
        if self._timer is None and self._sequences and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._look)

    def stop(self) -> None:
        """For good."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now = self._clock()
        for sequence in overdue(self._sequences.values(), now, self._deadline_s):
            sequence.is_suspect = True
            self._spawn(self._investigate(sequence), "deadline")
        for sequence in self._stalled.due(self._sequences, now):
            sequence.is_suspect = True
            self._spawn(self._seek_seed(sequence, now), "lost seed")
        self.start()

    async def _investigate(self, sequence: TokenSequence) -> None:
        epoch, position = sequence.epoch, sequence.oldest_in_flight
        error = await who_is_behind(sequence.passage.route, self._stations(), sequence, self._deadline_s)
        sequence.is_suspect = False
        if sequence.oldest_in_flight == position:  # else it was answered meanwhile, and another pass is under way
            sequence.failed_if_current(epoch, error)

    async def _seek_seed(self, sequence: TokenSequence, now: float) -> None:
        epoch = sequence.epoch
        error = await self._stalled.look(self._stations(), sequence, now)
        sequence.is_suspect = False
        if error is not None:
            sequence.failed_if_current(epoch, error)
