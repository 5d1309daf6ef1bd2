"""The grid of `bench trisplit`: ways to generate, each at several delays of a link, in one run.

All ways of one delay follow each other, the relay first, so that what is compared was measured within minutes. What
takes long is cut short: a cell makes fewer tokens where a hop is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..engine import Engine
from ..errors import UnsupportedOptionError
from .prompts import load_prompts
from .trisplit import Cell, Measured, OnToken, measure_cell
from .trisplit_estimate import Estimator

DELAYS_MS = (0.2, 1.0, 5.0, 20.0, 69.0)
LONGEST_CHAIN_S = 100.0  # of the decoding of a plain chain; fewer tokens beyond it
FEWEST_TOKENS = 16
WAYS: tuple[Cell, ...] = (
    Cell(route="relay"),
    Cell(),
    Cell(coalesce=False),
    Cell(pair_x="draft"),
    Cell(plan="ffslice:2"),
    Cell(speculate="lookup"),
    Cell(route="relay", speculate="lookup", prompts="edit"),
    Cell(speculate="lookup", prompts="edit"),
    Cell(plan="ffslice:2", speculate="lookup", prompts="edit"),
)
BASELINE = Cell(route="relay").way

OnCell = Callable[[int, "Planned"], OnToken]
OnMeasured = Callable[["Outcome"], None]


class Planned(msgspec.Struct, frozen=True):
    """A cell of the grid with how long it should take and may take at most, seconds."""

    cell: Cell
    estimate_s: float
    limit_s: float


class Outcome(msgspec.Struct, frozen=True):
    """What became of a planned cell: measured; or `why` it was not: refused by the engine, or failed (`is_failed`)."""

    planned: Planned
    measured: Measured | None
    why: str = ""
    is_failed: bool = False


def plan_grid(
    estimator: Estimator, delays_ms: Sequence[float], new_tokens: int, ways: Sequence[Cell] = WAYS
) -> tuple[Planned, ...]:
    """The cells in the order in which they run. `new_tokens`: of each, where the delay allows it."""
    planned = []
    for delay_ms in delays_ms:
        chain_s = estimator.token_s(msgspec.structs.replace(Cell(), link_delay_ms=delay_ms))
        tokens = min(new_tokens, max(FEWEST_TOKENS, int(LONGEST_CHAIN_S / chain_s)))
        for way in ways:
            cell = msgspec.structs.replace(way, link_delay_ms=delay_ms, new_tokens=tokens)
            planned.append(Planned(cell, estimator.cell_s(cell), estimator.limit_s(cell)))
    return tuple(planned)


async def run_grid(
    planned: Sequence[Planned], *, model: str, on_cell: OnCell, on_measured: OnMeasured
) -> list[Outcome]:
    """Run the cells one after the other. One that the engine refuses, or that fails, does not keep the others from
    running."""
    outcomes = []
    for index, one in enumerate(planned):
        prompt = load_prompts(one.cell.prompts).prompts[0]
        on_token = on_cell(index, one)
        try:
            measured = await measure_cell(one.cell, model=model, prompt=prompt, limit_s=one.limit_s, on_token=on_token)
            outcome = Outcome(one, measured)
        except UnsupportedOptionError as error:
            outcome = Outcome(one, None, str(error))
        except Exception as error:  # an hour of other cells stands behind this one; the failure is told at the end
            outcome = Outcome(one, None, f"{type(error).__name__}: {error}", is_failed=True)
        outcomes.append(outcome)
        on_measured(outcome)
    return outcomes


async def solo_answers(planned: Sequence[Planned], model: str) -> list[dict[str, Any]]:
    """What one process answers to the prompts of the cells, as long as the longest: {prompts, prompt, token_ids}."""
    cells = [one.cell for one in planned]
    answers = []
    async with Engine.launch(model=model, kernels=cells[0].kernels, threads=cells[0].threads) as engine:
        for prompts in dict.fromkeys(cell.prompts for cell in cells):
            prompt = load_prompts(prompts).prompts[0]
            tokens = max(cell.new_tokens for cell in cells if cell.prompts == prompts)
            result = await engine.generate(prompt.text, max_tokens=tokens, ignore_eos=True).collect()
            answers.append({"prompts": prompts, "prompt": prompt.id, "token_ids": list(result.token_ids)})
    return answers


def grid_report(outcomes: Sequence[Outcome], solo: Sequence[dict[str, Any]], model: str) -> dict[str, Any]:
    """One JSON object: every cell's, with its speed-up over the relay of its delay, and whether tokens agree.

    Answers to the same prompt must begin alike, whatever the way and the delay, and as those of `solo`.
    """
    reports = [outcome.measured.report for outcome in outcomes if outcome.measured is not None]
    relays = {r["link_delay_ms"]: r["token_s"] for r in reports if r["way"] == BASELINE}
    rows = [
        report | {"speedup_over_relay": _speedup(relays.get(report["link_delay_ms"]), report["token_s"])}
        for report in reports
    ]
    return {
        "bench": "trisplit-grid",
        "model": model,
        "machine": reports[0]["machine"] if reports else None,
        "tokens_agree": tokens_agree([*solo, *reports]),
        "solo": list(solo),
        "cells": rows,
        "refused": [_missing(outcome) for outcome in outcomes if outcome.measured is None and not outcome.is_failed],
        "failed": [_missing(outcome) for outcome in outcomes if outcome.is_failed],
    }


def _missing(outcome: Outcome) -> dict[str, Any]:
    cell = outcome.planned.cell
    return {"way": cell.way, "link_delay_ms": cell.link_delay_ms, "why": outcome.why}


def tokens_agree(reports: Sequence[dict[str, Any]]) -> bool:
    """Is every answer the beginning of the longest one to the same prompt?"""
    longest: dict[tuple[str, str], list[int]] = {}
    for report in reports:
        key = (report["prompts"], report["prompt"])
        if len(report["token_ids"]) > len(longest.get(key, [])):
            longest[key] = report["token_ids"]
    return all(
        report["token_ids"] == longest[(report["prompts"], report["prompt"])][: len(report["token_ids"])]
        for report in reports
    )


def _speedup(relay_s: float | None, token_s: float) -> float | None:
    return round(relay_s / token_s, 3) if relay_s and token_s else None
