"""Where the guesses of an engine's generations come from: what `--speculate` and the route's Pair X mode allow."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

from aeonflow.tensors import PREFIX_BYTES

from ..errors import InvalidRequestError
from ..pace import Pace
from .lookup import Lookup
from .policy import Means, Proposer
from .sizes import MAX_RUN, RunSizer
from .switch import DraftSwitch
from .times import PassTimes

if TYPE_CHECKING:
    from ..network import Network
    from ..request import Request
    from .model import DraftModel

# The share of right guesses to begin with, by n-gram matched and for a model (measured: `docs/speculation.md`).
EXPECTED: dict[Hashable, float] = {2: 0.3, 3: 0.45, 4: 0.6, 6: 0.8, "model": 0.7}

DRAFT_WORK = 2.07  # work at the busiest stations per emitted token with a pipelined draft, in canonical passes
EXPECTED_DRAFT_ALPHA = 0.85  # of the pipelined draft, before anything was measured
FORK_LAYER = 1


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
        return Lookup()


def make_drafters(speculate: str, network: Network, pace: Pace) -> Drafters:
    """What the options and the installed route allow."""
    drafts = None
    if network.route.pair_x == "draft":
        drafts = draft_switch(pace, network.route.num_layers, lambda: True)
    return Drafters(SpeculateMode.parse(speculate), pace, drafts, _max_rows(network))


def _max_rows(network: Network) -> int:
    limits = [station.hello.limits for station in network.stations]
    by_bytes = min(one.max_message_bytes for one in limits) // (4 * network.bundle.card.vocab_size + PREFIX_BYTES)
    return max(1, min([1 + MAX_RUN, by_bytes, *(one.max_rows or by_bytes for one in limits)]))


def draft_switch(pace: Pace, num_layers: int, permit: Callable[[], bool]) -> DraftSwitch:
    """The switch of a route whose stations draft."""
    return DraftSwitch(predicted_gain=predicted_gain(pace, num_layers), permit=permit)


def predicted_gain(pace: Pace, num_layers: int, alpha: float = EXPECTED_DRAFT_ALPHA) -> float:
    """How many times faster a pipelined draft can make decoding, by hops and by the work stations have time for.

    min(1 / (1 − α(1 − ρ)), T / U): ρ = (2n + f + 4) / (3n + 3) is the way of a draft in canonical passes, U what is
    computed for a token where everything shares the cores there are.
    """
    if not pace.shape.num_hops:
        return 0.0
    rho = (2 * num_layers + FORK_LAYER + 4) / (3 * num_layers + 3)
    by_hops = 1.0 / (1.0 - alpha * (1.0 - rho))
    work_s = DRAFT_WORK * (pace.costs.fixed_s + pace.costs.row_s) / pace.shape.parallel
    return min(by_hops, pace.token_s / work_s)
