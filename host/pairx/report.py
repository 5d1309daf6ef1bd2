"""What `aeonflow pairx probe` found of a model: a file below AEONFLOW_HOME, bound to the model's fingerprint."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..fleet.state import cache_root
from ..record_file import load_record, save_record

REPORT_VERSION = 1


class Share(msgspec.Struct, frozen=True):
    """Right ones of `drafted`, and the standard error by answers, None of one answer."""

    value: float
    se: float | None
    drafted: int


class SeedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What happens when layers take a seed, over texts, teacher-forced, and over the plain model's answers.

    `top1`: share of positions whose likeliest token stays; `kl`: mean KL(plain ‖ seeded) in nats; `perplexity_ratio`:
    seeded / plain. `alpha`: share of positions at which a draft with these layers seeded (canonical rows in the caches
    of earlier positions) chooses the plain pass's token; `alpha_of` each prompt set. `…_se`: standard errors, of
    figures of the texts over blocks of `block_rows` rows, of `alpha` over answers; None where there is one of them, and
    in reports of earlier versions.
    """

    top1: float
    kl: float
    perplexity_ratio: float
    alpha: float
    top1_se: float | None = None
    kl_se: float | None = None
    perplexity_ratio_se: float | None = None
    alpha_se: float | None = None
    alpha_of: dict[str, Share] = {}


class LayerProbe(SeedEffect, frozen=True, kw_only=True):
    """What happens when `layer` alone takes a seed.

    `max_abs` (of all rows, and `max_abs_block` the median over blocks of `block_rows`, with their 10 % and 90 %
    quantiles) and `relative` (max |seed − x| / max |x|, the mean over rows): the seed against the layer's input.
    `attention_moves`: ‖attn(seed) − attn(x)‖ / ‖attn(x)‖, the mean over rows.
    """

    layer: int
    max_abs: float
    relative: float
    relative_se: float | None = None
    max_abs_block: float | None = None
    max_abs_block_low: float | None = None
    max_abs_block_high: float | None = None
    attention_moves: float | None = None
    attention_moves_se: float | None = None


class SetProbe(SeedEffect, frozen=True, kw_only=True):
    """Several layers seeded at once: those of the ranking's beginning."""

    layers: tuple[int, ...]


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """`ranking`: layers from the least harmed on. `seed`: what was sent, "h" or "x".

    `best_max_abs`: max_abs of the best layer of a block, whichever that is: the median over whole blocks, with their
    10 % and 90 % quantiles; None where no layer was seeded alone.
    """

    version: int
    model: str
    fingerprint: str
    seed: str
    num_layers: int
    num_texts: int
    num_tokens: int
    perplexity: float
    perplexity_se: float | None = None
    layers: tuple[LayerProbe, ...]
    sets: tuple[SetProbe, ...]
    ranking: tuple[int, ...]
    best_max_abs: float | None = None
    best_max_abs_low: float | None = None
    best_max_abs_high: float | None = None
    block_rows: int = 0  # rows of a block of the texts; 0 in reports without errors
    made: str = ""  # date and time, UTC

    @property
    def passes_max_abs(self) -> tuple[int, ...]:
        """Layers whose seed is the layer's input within the gate's 1e-4."""
        return tuple(one.layer for one in self.layers if one.max_abs <= MAX_ABS)


MAX_ABS = 1e-4  # of the gate: a seed that is further off is another model's input


def report_path(fingerprint: str, seed: str = "h") -> Path:
    """Where the report of a model is kept."""
    return cache_root(os.environ) / "pairx" / f"{fingerprint}.{seed}.json"


def load_report(fingerprint: str, seed: str = "h") -> ProbeReport | None:
    """The report of a model, None when there is none of this version. HostError for a file that cannot be read."""
    report = load_record(report_path(fingerprint, seed), ProbeReport, "aeonflow pairx probe")
    return report if report and (report.version, report.fingerprint) == (REPORT_VERSION, fingerprint) else None


def save_report(report: ProbeReport) -> Path:
    """Keep a report in place of an older one of the model."""
    return save_record(report_path(report.fingerprint, report.seed), report)
