"""First figures of seeds beside a probe: what counts as inside of noise."""

from __future__ import annotations

from typing import Any

import pytest

from host.pairx.probe_facts import ALPHA, ERRORS, RATIOS, WORST, Fact, facts, table
from host.pairx.report import LayerProbe, ProbeReport, SetProbe, Share

ERROR = 0.01
SPREAD = {2: 0.6, 24: 1.8}  # attention moves of layers; the others by 0.5


def report(seed: str, *, off: float = 0.0, bad: tuple[int, ...] = WORST, kl_se: float = ERROR) -> ProbeReport:
    """As first measured; ratios of sets and shares `off` by so many of their errors."""
    effect: dict[str, Any] = {"top1": 0.9, "alpha": 0.9}
    layers = tuple(
        LayerProbe(
            layer=layer, max_abs=20.0, relative=0.1, attention_moves=SPREAD.get(layer, 0.5), perplexity_ratio=1.1,
            kl=0.3 if layer in bad else 0.1, kl_se=kl_se, **effect,
        )
        for layer in range(1, 30)
    )  # fmt: skip
    shares = {name: Share(first + off * ERROR, ERROR, 500) for (of, name), first in ALPHA.items() if of == seed}
    sets = [
        SetProbe(
            layers=tuple(range(30 - k, 30)), perplexity_ratio=first * (1 + off * ERROR),
            perplexity_ratio_se=first * ERROR, kl=0.1, alpha_of=shares, **effect,
        )
        for k, first in {**RATIOS, 28: 8.0}.items()
    ]  # fmt: skip
    return ProbeReport(
        version=1, model="m", fingerprint="f" * 8, seed=seed, num_layers=30, num_texts=1, num_tokens=500,
        perplexity=9.0, layers=layers, sets=tuple(sets), ranking=tuple(range(29, 0, -1)), block_rows=20,
        best_max_abs=5.0, best_max_abs_low=4.0, best_max_abs_high=6.0,
    )  # fmt: skip


def outside(found: list[Fact]) -> list[str]:
    return [one.name for one in found if not one.is_inside]


def found_with(off: float) -> list[Fact]:
    return facts(report("h", off=off), [report("h", off=-off), report("x", off=off)])


def test_figures_as_first_measured_are_inside_and_those_beyond_two_errors_of_both_are_not() -> None:
    assert len(found_with(0.0)) == 4 + len(RATIOS) + len(ALPHA)
    assert outside(found_with(0.0)) == outside(found_with(ERRORS - 0.1)) == []
    assert len(outside(found_with(ERRORS + 0.2))) == len(RATIOS) + len(ALPHA)


@pytest.mark.parametrize(("kl_se", "is_inside"), [(0.001, False), (0.2, True)])
def test_a_layer_is_as_bad_as_another_where_their_errors_do_not_tell_them_apart(kl_se: float, is_inside: bool) -> None:
    found = facts(report("h", bad=(1, 3, 7, 12, 18), kl_se=kl_se), [report("h"), report("x")])
    assert {one.name: one.is_inside for one in found}["most harmed alone, by KL"] is is_inside


def test_the_table_says_what_is_inside() -> None:
    lines = table(facts(report("h", off=9.0), [report("h"), report("x")])).splitlines()
    assert lines[2] == "| layers within max_abs ≤ 1e-4, of 29 | 0 | 0 | inside |"
    assert "| perplexity ×, 2 least harmed layers seeded | 1.012 | 1.103 ± 0.010 | outside |" in lines
    assert "| α, seed x, edit, all layers but 1 seeded | 0.855 | 0.855 ± 0.010 of 500 | inside |" in lines
