"""Whether stations have time for drafts when several answers are made at once: asked of their own counters.

Drafts double the work of a token. While the busiest station, or the cores that all share, compute less than 75 % of the
time, drafts are permitted to all sessions; above 85 % to none. A single session needs no permit: its switch measures.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aeonflow.messages import Stats, StatsReply

from ..links import answers

if TYPE_CHECKING:
    from ..network import Network

GRANT_BELOW, WITHDRAW_ABOVE = 0.75, 0.85  # of the time, computing
PERIOD_S = 1.0
STATS_TIMEOUT_S = 2.0


class Permits:
    """`cores`: how many all stations share, None where each has its own."""

    def __init__(self, cores: int | None, num_busy: Callable[[], int]) -> None:
        self.utilisation = 0.0  # of the busiest resource, in the last period
        self._cores = cores
        self._num_busy = num_busy
        self._is_granted = True
        self._before: tuple[float, dict[int, float]] | None = None

    def __call__(self) -> bool:
        """May a draft grow now?"""
        return self._is_granted or self._num_busy() < 2

    def observe(self, compute_s: Mapping[int, float], now: float) -> None:
        """Seconds that each station has computed since it started, at `now`."""
        before, self._before = self._before, (now, dict(compute_s))
        if before is None or now <= before[0]:
            return
        elapsed = now - before[0]
        shares = [max(0.0, total - before[1].get(index, total)) / elapsed for index, total in compute_s.items()]
        self.utilisation = max([*shares, sum(shares) / self._cores if self._cores else 0.0], default=0.0)
        if self.utilisation > WITHDRAW_ABOVE:
            self._is_granted = False
        elif self.utilisation < GRANT_BELOW:
            self._is_granted = True


def num_busy(network: Network) -> int:
    """Sessions that wait for a pass."""
    return sum(one.oldest_in_flight is not None for one in network.sequences.values())


@asynccontextmanager
async def watched(permits: Permits, network: Network, clock: Callable[[], float]) -> AsyncIterator[None]:
    """Inside the block the stations are asked once a period, while several sessions are open."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            if num_busy(network) > 1:
                replies = await answers(network.stations, Stats(), StatsReply, STATS_TIMEOUT_S)
                permits.observe({index: compute_seconds(reply) for index, reply in replies.items()}, clock())

    task = asyncio.get_running_loop().create_task(watch(), name="permits of drafts")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def compute_seconds(reply: StatsReply) -> float:
    """Seconds computed, over all roles; 0 where a station says what cannot be read: it withdraws no permit."""
    by_role = reply.values.get("compute_s")
    seconds = by_role.values() if isinstance(by_role, Mapping) else ()
    return float(sum(one for one in seconds if isinstance(one, int | float) and math.isfinite(one)))
