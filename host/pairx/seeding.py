"""From what was asked for to the layers of a route that take seeds. Pure: plan, card and reports are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from aeonflow.messages import Route
from aeonflow.passes import max_seed_rows

from ..errors import InvalidRequestError, UnsupportedOptionError
from ..plan import Plan
from ..speculate.counts import SourceCounts
from .options import OFF, PairX
from .report import LayerProbe, ProbeReport, SetProbe

SPLIT_ROLES = ("attn", "gate_up", "down")
ALLOWING = "plans with attn, gate_up and down as roles allow it: trisplit, trisplit:per-layer, a .toml file"
BUILT_FOR_LIVE = ("ladder", "parallel")
DRAFT_FORK = (
    1  # without a report: the first layers are harmed most, so a draft grows from layer 1 and seeds those above
)

DRAFT_GAIN_NOISE = 0.01  # gains of two sets of layers that the probe cannot tell apart


class Seeding(msgspec.Struct, frozen=True):
    """The mode of a route and its layers that take a seed, as the route carries them.

    `drift`: of live on a model that was not built for it, in words, how far the output is another model's; else empty.
    """

    mode: str
    layers: tuple[int, ...] = ()
    seed: str = "h"
    drift: str = ""

    @property
    def is_on(self) -> bool:
        return self.mode != OFF

    @property
    def is_seeded_pass(self) -> bool:
        """Do rows run ahead of what the layer below delivers, so that no caller can wait for each output in turn?"""
        return self.mode in ("draft", "live")

    def has_chain(self, residual: str) -> bool:
        """Are rows computed from seeds, and does the plain chain of a model with `residual` give the same bits?"""
        return self.mode == "bypass" or (self.mode == "live" and residual in BUILT_FOR_LIVE)

    def applied_to(self, route: Route) -> Route:
        """The same route with its seeds."""
        return msgspec.structs.replace(route, pair_x=self.mode, seeded=self.layers, seed=self.seed)

    def told(self, drafts: SourceCounts, num_rows: int, degraded: str = "") -> dict[str, Any]:
        """As results show it, for a generation of which `num_rows` rows were computed, with what seeds were asked for.

        `seeded`: rows that seeds went along with, of a draft route the drafts; `diverged`: drafts that were wrong;
        `degraded`, where some rows had to go without seeds: why.
        """
        is_draft = self.mode == "draft"
        seeded = drafts.drafted if is_draft else num_rows if self.is_on else 0
        drafted, accepted = (drafts.drafted, drafts.accepted) if is_draft else (0, 0)
        return {
            "mode": self.mode,
            "layers": list(self.layers),
            "seeded": seeded,
            "drafted": drafted,
            "accepted": accepted,
            "diverged": drafted - accepted,
            **({"degraded": degraded} if degraded else {}),
        }

    def max_rows(self, hidden_size: int) -> int | None:
        """Rows of a pass whose seeds fit a frame; None where there are none."""
        return max_seed_rows(hidden_size) if self.is_on else None


NO_SEEDING = Seeding(OFF)


def check_plan(pair_x: PairX, plan: Plan) -> None:
    """UnsupportedOptionError, naming the plans that allow it, for a plan none of whose layers can take a seed."""
    if pair_x.is_on and not seedable_layers(plan):
        raise UnsupportedOptionError(f"pair_x {pair_x.mode} with plan {plan.name!r}: {ALLOWING}")


def seedable_layers(plan: Plan) -> tuple[int, ...]:
    """Layers that can take a seed: they and the layer below are cut into attn, gate_up and down."""
    split = [
        {name for s in plan.stations for role in s.roles for name in (role.name,) if role.lo <= layer <= role.hi}
        >= set(SPLIT_ROLES)
        for layer in range(plan.num_layers)
    ]
    return tuple(layer for layer in range(1, plan.num_layers) if split[layer - 1] and split[layer])


def resolve(
    pair_x: PairX,
    plan: Plan,
    *,
    residual: str,
    hidden_size: int,
    report: ProbeReport | None,
    gate_passed: bool,
    prefill_chunk: int | None,
) -> Seeding:
    """The layers that take a seed. Raises UnsupportedOptionError or InvalidRequestError by name.

    `report`: what the probe found of this model, if it was run; `gate_passed`: its seeds were found equal to what the
    chain delivers.
    """
    if not pair_x.is_on:
        return NO_SEEDING
    check_plan(pair_x, plan)
    if residual != "sequential" and pair_x.mode != "live":
        raise UnsupportedOptionError(f"pair_x {pair_x.mode} with a {residual} residual: off and live are possible")
    if pair_x.mode == "live" and residual not in BUILT_FOR_LIVE and not gate_passed and not pair_x.approximate:
        raise UnsupportedOptionError(
            f"pair_x live: the model's residual is {residual!r}, not {' or '.join(BUILT_FOR_LIVE)}, and no gate "
            "(aeonflow bench gate) has found its seeds equal to the chain's, so the output would be another model's; "
            "--approximate runs it all the same"
        )
    layers = _layers(pair_x, plan, report)
    is_other_model = pair_x.mode == "live" and residual not in BUILT_FOR_LIVE and not gate_passed
    seeding = Seeding(pair_x.mode, layers, pair_x.seed or "h", _drift(layers, report) if is_other_model else "")
    most = max_seed_rows(hidden_size)
    if prefill_chunk is not None and prefill_chunk > most:
        raise InvalidRequestError(
            f"prefill_chunk {prefill_chunk} with pair_x {pair_x.mode}: a seed is one frame, which holds {most} rows of "
            f"{hidden_size} floats"
        )
    return seeding


def _layers(pair_x: PairX, plan: Plan, report: ProbeReport | None) -> tuple[int, ...]:
    possible, wanted = seedable_layers(plan), pair_x.wanted
    if wanted.listed:
        if missing := [layer for layer in wanted.listed if layer not in possible]:
            raise InvalidRequestError(
                f"pair_x_layers {pair_x.layers}: layer {missing[0]} cannot take a seed on plan {plan.name!r}; "
                f"{_span(possible)} can"
            )
        return wanted.listed
    if wanted.count:
        if wanted.count > len(possible):
            raise InvalidRequestError(f"pair_x_layers {pair_x.layers}: {len(possible)} layers can take a seed")
        if report is None:
            raise InvalidRequestError(
                f"pair_x_layers {pair_x.layers}: no report says which layers are harmed least; "
                "run aeonflow pairx probe first"
            )
        ranked = [layer for layer in report.ranking if layer in possible]
        return tuple(sorted(ranked[: wanted.count]))
    if pair_x.mode == "draft" and pair_x.layers is None:
        return _draft_layers(possible, plan.num_layers, report)
    return possible


def _drift(layers: tuple[int, ...], report: ProbeReport | None) -> str:
    """What the probe measured of these layers seeded together, or of the smallest set that has them all."""
    what = f"{len(layers)} layers take a seed that the model was not built for"
    if report is None:
        return f"{what}: how much that changes it was not measured (aeonflow pairx probe)"
    found: list[tuple[LayerProbe | SetProbe, int]] = [(one, 1) for one in report.layers if (one.layer,) == layers]
    around = sorted((one for one in report.sets if set(layers) <= set(one.layers)), key=lambda one: len(one.layers))
    found += [(one, len(one.layers)) for one in around]
    if not found:
        return f"{what}: the probe's report has no set of layers with all of them"
    one, count = found[0]
    of = "measured" if count == len(layers) else f"measured with {count}"
    return f"{what}: perplexity × {one.perplexity_ratio:.3g}, top-1 {one.top1:.2f}, KL {one.kl:.3g}, {of}"


def _draft_layers(possible: tuple[int, ...], num_layers: int, report: ProbeReport | None) -> tuple[int, ...]:
    """The layers that a draft seeds unless told: those that make it fastest by the report, else all above layer 1."""
    if report is not None:
        sets = [one for one in report.sets if set(one.layers) <= set(possible) and len(one.layers) > num_layers // 2]
        if sets:
            gains = {one.layers: draft_gain(one.alpha, len(one.layers), num_layers) for one in sets}
            near_best = [one for one in sets if gains[one.layers] >= (1 - DRAFT_GAIN_NOISE) * max(gains.values())]
            return max(near_best, key=lambda one: one.alpha).layers  # fewer misses are less work for stations
    return tuple(layer for layer in possible if layer > DRAFT_FORK) or possible


def draft_gain(alpha: float, num_seeded: int, num_layers: int) -> float:
    """How many times faster a pipelined draft makes decoding where hops are all that counts: 1 / (1 − α(1 − ρ)).

    ρ, the way of a draft in ways of a canonical pass of 3n + 3 hops: two hops a seeded layer and three an unseeded one.
    """
    hops = 2 * num_layers + 4 + (num_layers - 1 - num_seeded)
    return 1.0 / (1.0 - alpha * (1.0 - hops / (3 * num_layers + 3)))


def _span(layers: Sequence[int]) -> str:
    return f"layers {layers[0]} to {layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}"
