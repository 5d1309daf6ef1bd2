"""The ways through the stations that a network has: the one that was asked for, and the plain one it falls back to.

Where rows are computed from residual seeds and the same bits can be had without, both are installed at once: a session
whose seeds fail needs no more than a new epoch to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from aeonflow.errors import AeonflowError, GapError, SeedError
from aeonflow.messages import InstallRoute, Route
from aeonflow.route import has_canonical_seeds

from .chain import ChainPassage
from .forward import installed
from .links import CONTROL_TIMEOUT_S, StationLink, gather
from .pairx import NO_SEEDING, Seeding
from .pairx.lines import SeedLines
from .plan import Plan, to_route
from .relay import RelayPassage, SeedCounts
from .sequence import Detour, Passage

AnyPassage = ChainPassage | RelayPassage

OF_SEEDS = (SeedError, GapError)  # what becomes of a pass with canonical seeds that were damaged or lost


class Ways:
    """What is installed, and which of it sessions that begin take.

    `asked`: with the seeds that were asked for; it takes the answers of either way. `plain`: to the same bits without
    seeds; None where no rows are computed from any. `lines`: those of the seeds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.lines = SeedLines(clock)
        self.asked: AnyPassage | None = None  # before anything is installed
        self.plain: AnyPassage | None = None

    @property
    def current(self) -> AnyPassage:
        """The way of sessions that begin: the one that was asked for, unless its lines are closed."""
        assert self.asked is not None, "not started"
        return self.asked if self.plain is None or self.lines.are_open else self.plain

    def leave_seeds(self, error: AeonflowError, route: Route) -> bool:
        """Is `error` of a pass along `route` a fault of its seeds? Their lines are closed then, where the plain chain
        gives the same bits."""
        is_of_seeds = isinstance(error, OF_SEEDS) and has_canonical_seeds(route)
        if is_of_seeds and self.plain is not None:
            self.lines.close(str(error))
        return is_of_seeds

    def detour(self, passage: Passage, first: int, before: Detour | None = None) -> Detour | None:
        """What is to be said of a session whose rows from `first` on go by `passage`; `before`: of earlier ones."""
        if passage is not self.plain:
            return None
        return Detour(min(first, before.first), before.why) if before else Detour(first, self.lines.fault)

    async def install(
        self,
        plan: Plan,
        seeding: Seeding,
        residual: str,
        stations: Sequence[StationLink],
        vocab_size: int,
        seeds: SeedCounts,
        *,
        is_relay: bool,
        next_id: Callable[[], int],
    ) -> None:
        """Fresh routes on every station. Raises the first refusal, or DeadlineError naming who does not answer."""
        urls = [station.hello.advertise or station.url for station in stations]

        async def way(one: Seeding) -> AnyPassage:
            route = one.applied_to(to_route(plan, next_id(), urls, residual))
            if is_relay and not seeding.is_seeded_pass:
                return RelayPassage(route, stations, vocab_size, seeds)
            route = msgspec.structs.replace(route, through_host=is_relay)
            await _install(route, stations)
            return installed(route, stations, vocab_size, seeds)

        asked = await way(seeding)
        plain = await way(NO_SEEDING) if seeding.has_chain(residual) else None
        self.asked, self.plain = asked, plain
        self.lines.reopen()


async def _install(route: Route, stations: Sequence[StationLink]) -> None:
    asked = [(s, s.ask(InstallRoute(route, index))) for index, s in enumerate(stations)]
    await gather(asked, CONTROL_TIMEOUT_S, "the installation of a route")
