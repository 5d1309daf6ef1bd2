"""Where the guesses of an engine's generations come from: what `--speculate` and the route's Pair X mode allow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from aeonflow.tensors import PREFIX_BYTES

from ..errors import InvalidRequestError
from ..pace import Pace
from ..pairx.seeding import draft_gain
from .lookup import Lookup
from .model import DraftModel
from .permits import Permits, num_busy, watched
from .policy import Means, Proposer
from .sizes import MAX_RUN, RunSizer
from .switch import DraftSwitch
from .times import PassTimes

if TYPE_CHECKING:
    from ..engine import Engine
    from ..network import Network
    from ..request import Request

# The share of right guesses to begin with, by n-gram matched and for a model (measured: `docs/speculation.md`).
EXPECTED: dict[Hashable, float] = {1: 0.2, 2: 0.45, 3: 0.55, 4: 0.65, 6: 0.75, "model": 0.7}

DRAFTS_ABOVE = 2  # tokens that lookup must match where the pipelined draft guesses too, which is right more often

DRAFT_WORK = 2.07  # work at the busiest stations per emitted token with a pipelined draft, in canonical passes
EXPECTED_DRAFT_ALPHA = 0.85  # of the pipelined draft, before anything was measured


class SpeculateMode(NamedTuple):
    """`--speculate`, taken apart: `model` is the name behind `model:`, empty for the others."""

    kind: str
    model: str = ""

    @classmethod
    def parse(cls, text: str) -> SpeculateMode:
        """InvalidRequestError for `model` without a name; what kinds there are is checked with the other options."""
        kind, _, model = text.partition(":")
        if kind == "model" and not model:
            raise InvalidRequestError(
                "speculate 'model': model:NAME is needed, the name, path or synthetic:… of a model"
            )
        return cls(kind, model)

    @property
    def looks_up(self) -> bool:
        return self.kind in ("lookup", "auto")

    def __str__(self) -> str:
        return f"{self.kind}:{self.model}" if self.model else self.kind


class Drafters:
    """One for an engine. `drafts`: the switch of Pair X `draft`, None where the route has none; `model`: a small model
    that runs in the host, None without."""

    def __init__(self, mode: SpeculateMode, pace: Pace, drafts: DraftSwitch | None, max_rows: int) -> None:
        """`max_rows` of a pass whose logits are all wanted: what stations take and their answers have room for."""
        self.mode = mode
        self.max_rows = max_rows
        self.drafts = drafts
        self.model: DraftModel | None = None
        self.times = PassTimes(pace.token_s, pace.costs.row_s)

    def to_json(self) -> dict[str, Any]:
        """For the status of an engine: what passes are measured to take, and how the switch of drafts stands."""
        found: dict[str, Any] = {
            "mode": str(self.mode),
            "row_ms": round(1e3 * self.times.row_s, 3),
            "extra_row_ms": round(1e3 * self.times.extra_s, 3),
        }
        return found if self.drafts is None else {**found, "switch": self.drafts.to_json()}

    async def open_proposer(self, request: Request) -> Proposer | None:
        """The small model's guesses for one generation, to be closed at its end; None without one."""
        return None if self.model is None else await self.model.open(request)

    def means(self, proposer: Proposer | None, *, can_pipeline: bool = True) -> Means:
        """For one generation. `can_pipeline`: may several of its passes be cut by one epoch?"""
        return Means(
            str(self.mode),
            self.times,
            sizer=self.new_sizer() if self.mode.looks_up or proposer is not None else None,
            lookup=self.new_lookup() if self.mode.looks_up else None,
            model=proposer,
            drafts=self.drafts if can_pipeline else None,
        )

    def new_sizer(self) -> RunSizer:
        return RunSizer(self.times, EXPECTED)

    def new_lookup(self) -> Lookup:
        return Lookup() if self.drafts is None else Lookup(shortest=DRAFTS_ABOVE)


@asynccontextmanager
async def running_drafters(
    speculate: str,
    network: Network,
    pace: Pace,
    launch: Callable[..., AbstractAsyncContextManager[Engine]],
    clock: Callable[[], float],
) -> AsyncIterator[Drafters]:
    """What the options and the installed route allow. Inside the block the small model runs, if one is named, and
    stations are asked whether they have time for drafts, if they draft. InvalidRequestError for another tokenizer."""
    route, drafts, permits = network.route, None, None
    if route.pair_x == "draft":
        permits = Permits(pace.shape.cores, lambda: num_busy(network))
        drafts = DraftSwitch(predicted_gain=predicted_gain(pace, len(route.seeded), route.num_layers), permit=permits)
    drafters = Drafters(SpeculateMode.parse(speculate), pace, drafts, _max_rows(network))
    async with AsyncExitStack() as stack:
        if drafters.mode.model:
            small = await stack.enter_async_context(launch(model=drafters.mode.model))
            drafters.model = DraftModel(small, network.bundle.text)
        if permits is not None:
            await stack.enter_async_context(watched(permits, network, clock))
        yield drafters


def _max_rows(network: Network) -> int:
    limits = [station.hello.limits for station in network.stations]
    by_bytes = min(one.max_message_bytes for one in limits) // (4 * network.bundle.card.vocab_size + PREFIX_BYTES)
    return max(1, min([1 + MAX_RUN, by_bytes, *(one.max_rows or by_bytes for one in limits)]))


def predicted_gain(pace: Pace, num_seeded: int, num_layers: int, alpha: float = EXPECTED_DRAFT_ALPHA) -> float:
    """How many times faster a pipelined draft can make decoding: by its way in hops, and by the work there is time for.

    min(1 / (1 − α(1 − ρ)), T / U), U what is computed for a token where stations share cores.
    """
    if not pace.shape.num_hops:
        return 0.0
    work_s = DRAFT_WORK * (pace.costs.fixed_s + pace.costs.row_s) / pace.shape.parallel
    return min(draft_gain(alpha, num_seeded, num_layers), pace.token_s / work_s)
