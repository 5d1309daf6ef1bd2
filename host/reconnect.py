"""Lost stations and their way back: why one was lost, dialled with growing pauses, joined to the others again.

One background task a lost station. Knows nothing of sessions, plans or models: its owner joins and is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aeonflow.errors import AeonflowError, StationLostError

from .links import DIAL_TIMEOUT_S, LinkState, StationLink

logger = logging.getLogger(__name__)

REDIAL_FIRST_S, REDIAL_CAP_S = 0.05, 2.0
NOT_JOINED = "the route is not installed"


class Reconnector:
    """`ready` is set while every station is there and joined to the others; the owner says so with `joined`.

    `join` is called whenever a station is connected again, and joins all of them if none is missing. `failed` is told
    the reason of a loss as soon as that is known. `spawn` runs a coroutine as a task that the owner ends.
    """

    def __init__(
        self,
        join: Callable[[], Awaitable[None]],
        failed: Callable[[StationLostError], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        rng: random.Random,
    ) -> None:
        self.ready = asyncio.Event()
        self.trouble = NOT_JOINED  # what keeps stations that are all connected from being joined
        self._join = join
        self._failed = failed
        self._spawn = spawn
        self._rng = rng
        self._recovering: set[StationLink] = set()
        self._num_explaining = 0

    @property
    def is_explaining(self) -> bool:
        """Are the last words of a lost station's process being waited for?"""
        return self._num_explaining > 0

    def joined(self) -> None:
        """All stations are there, and their route is installed."""
        self.trouble = NOT_JOINED
        self.ready.set()

    def lost(self, station: StationLink) -> None:
        """A link broke: say why, and dial until the station is back."""
        self.ready.clear()
        if station in self._recovering:  # lost again while it was being joined: what was asked of it fails now
            assert station.lost_error is not None
            station.fail_pending(station.lost_error)
        else:
            self._recovering.add(station)
            self._spawn(self._recover(station), f"recover {station.name}")

    async def _recover(self, station: StationLink) -> None:
        self._num_explaining += 1
        try:
            error = await station.explain_loss()
        finally:
            self._num_explaining -= 1
        station.fail_pending(error)
        self._failed(error)
        delay_s = REDIAL_FIRST_S
        while not await self._rejoin(station):
            await asyncio.sleep(self._rng.uniform(0.0, delay_s))
            delay_s = min(2.0 * delay_s, REDIAL_CAP_S)
        self._recovering.discard(station)

    async def _rejoin(self, station: StationLink) -> bool:
        """One try to have the station back; the last one that comes back has all joined."""
        try:
            if station.state is not LinkState.READY:
                await station.dial(DIAL_TIMEOUT_S)
            await self._join()
        except AeonflowError as failure:
            self.trouble = str(failure)
            logger.info("station %s is not back yet: %s", station.name, failure)
            return False
        return True
