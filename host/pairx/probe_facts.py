"""What was first measured of seeds on SmolLM2, held against probes of now with the noise of both.

The first texts and their length are not known any more, so their noise is taken to be that of the probe: a figure is
inside when it is at most two standard errors of a difference of two such figures away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .report import LayerProbe, ProbeReport

ERRORS = 2.0 * math.sqrt(2.0)  # standard errors of one figure, of two of equal noise that may differ by two of theirs
RATIOS = {2: 1.012, 4: 1.020, 8: 1.055, 16: 1.28, 24: 1.97, 29: 199.0}  # perplexity ×, k least harmed layers seeded
LEAST_MAX_ABS = 4.35  # of the best layer
ATTENTION = (0.15, 1.90)  # least and most that a layer's attention moves
MOVES_OUTSIDE = 2  # layers at the ends of that range that may lie outside
WORST = (1, 2, 3, 7, 12)
ALPHA = {("h", "chat"): 0.830, ("h", "edit"): 0.913, ("x", "chat"): 0.805, ("x", "edit"): 0.855}
DRAFTED = tuple(range(2, 30))  # layers that the drafts of ALPHA seed: all that can, but 1


class Fact(msgspec.Struct, frozen=True):
    """A figure as first measured and as it is here, with its error; is the difference inside of the noise of both?"""

    name: str
    first: str
    here: str
    is_inside: bool


def facts(texts: ProbeReport, drafts: Sequence[ProbeReport]) -> list[Fact]:
    """Of a probe of seed h over texts, and of probes of drafts of `DRAFTED`, one for each seed."""
    return [*_of_layers(texts), *_of_sets(texts), *(fact for report in drafts for fact in _of_drafts(report))]


def table(found: list[Fact]) -> str:
    """As Markdown."""
    rows = [f"| {one.name} | {one.first} | {one.here} | {'inside' if one.is_inside else 'outside'} |" for one in found]
    return "\n".join(["| figure | first | here | of noise |", "|---|---|---|---|", *rows])


def _of_layers(h: ProbeReport) -> list[Fact]:
    passing = len(h.passes_max_abs)
    assert h.best_max_abs is not None, "layers were seeded alone"
    low, high = h.best_max_abs_low or 0.0, h.best_max_abs_high or math.inf
    moves = sorted(layer.attention_moves or 0.0 for layer in h.layers)
    within = sum(ATTENTION[0] <= moved <= ATTENTION[1] for moved in moves)
    worst = sorted(h.layers, key=lambda layer: layer.kl, reverse=True)[: len(WORST)]
    named = [layer for layer in h.layers if layer.layer in WORST and layer not in worst]
    told = "; ".join(f"{layer.layer}: {_pm(layer.kl, layer.kl_se)}" for layer in [*worst, *named])
    return [
        Fact(f"layers within max_abs ≤ 1e-4, of {len(h.layers)}", "0", str(passing), passing == 0),
        Fact(
            "max_abs of the best layer",
            f"{LEAST_MAX_ABS}",
            f"{h.best_max_abs:.2f} over {h.block_rows} rows ({low:.2f}–{high:.2f} in 10–90 % of the blocks); over all "
            f"{min(layer.max_abs for layer in h.layers):.2f}",
            low <= LEAST_MAX_ABS <= high,
        ),
        Fact(
            "attention moves, least to most of a layer",
            "15–190 %",
            f"{moves[0]:.0%} to {moves[-1]:.0%}; {within} of {len(moves)} layers between",
            within >= len(moves) - MOVES_OUTSIDE,
        ),
        Fact(
            "most harmed alone, by KL",
            ", ".join(map(str, WORST)),
            told,
            all(_as_bad(layer, worst[-1]) for layer in named),
        ),
    ]


def _as_bad(one: LayerProbe, other: LayerProbe) -> bool:
    """Can the two not be told apart?"""
    return abs(one.kl - other.kl) <= 2.0 * math.hypot(one.kl_se or 0.0, other.kl_se or 0.0)


def _of_sets(h: ProbeReport) -> list[Fact]:
    found = {len(one.layers): one for one in h.sets}
    told = []
    for k, first in RATIOS.items():
        here, error = found[k].perplexity_ratio, found[k].perplexity_ratio_se
        is_inside = abs(math.log(first / here)) <= ERRORS * (error or 0.0) / here
        told.append(Fact(f"perplexity ×, {k} least harmed layers seeded", f"{first:g}", _pm(here, error), is_inside))
    return told


def _of_drafts(report: ProbeReport) -> list[Fact]:
    (drafted,) = [one for one in report.sets if one.layers == DRAFTED]
    return [
        Fact(
            f"α, seed {seed}, {name}, all layers but 1 seeded",
            f"{first:.3f}",
            f"{_pm(share.value, share.se)} of {share.drafted}",
            abs(first - share.value) <= ERRORS * (share.se or 0.0),
        )
        for (seed, name), first in ALPHA.items()
        if seed == report.seed
        for share in (drafted.alpha_of[name],)
    ]


def _pm(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"
