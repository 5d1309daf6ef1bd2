"""From the sums that the stations' probe tells, block by block and answer by answer, to figures with their errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from ..bench.measure import spread
from ..evaluate.estimate import Estimate, mean_of_blocks
from .report import REPORT_VERSION, LayerProbe, ProbeReport, SetProbe, Share


def to_report(found: dict[str, Any]) -> ProbeReport:
    """The verb's result as a report made now. Raises KeyError for what is none."""
    counted = _Counted(found)
    perplexity = counted.mean(found["plain"]["nll"]).exp()
    return ProbeReport(
        version=REPORT_VERSION,
        model=found["model"],
        fingerprint=found["fingerprint"],
        seed=found["seed"],
        num_layers=found["num_layers"],
        num_texts=found["num_texts"],
        num_tokens=sum(found["block_rows"]),
        perplexity=perplexity.value,
        perplexity_se=perplexity.se,
        layers=tuple(
            LayerProbe(layer=one["layer"], **counted.offs(one), **counted.effect(one)) for one in found["layers"]
        ),
        sets=tuple(SetProbe(layers=tuple(one["layers"]), **counted.effect(one)) for one in found["sets"]),
        ranking=tuple(found["ranking"]),
        **counted.best_offs(found["layers"]),
        block_rows=max(found["block_rows"]),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )


class _Counted:
    """Rows of the blocks and answers that all sums of a probe share."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._block_rows: list[int] = found["block_rows"]
        self._off_block_rows: list[int] = found["off_block_rows"]
        self._drafted: list[int] = found["drafted"]
        self._answers_of: list[str] = found["answers_of"]
        self._plain_nll: list[float] = found["plain"]["nll"]

    def mean(self, sums: Sequence[float]) -> Estimate:
        """Over the rows of which a next token is known."""
        return _mean(sums, self._block_rows)

    def effect(self, one: dict[str, Any]) -> dict[str, Any]:
        """The fields of `SeedEffect`. The ratio of perplexities pairs seeded and plain rows, block by block."""
        more = [seeded - plain for seeded, plain in zip(one["nll"], self._plain_nll, strict=True)]
        alpha = _mean(one["right"], self._drafted)
        return {
            **_fields("top1", self.mean(one["same_top"])),
            **_fields("kl", self.mean(one["kl"])),
            **_fields("perplexity_ratio", self.mean(more).exp()),
            **_fields("alpha", alpha),
            "alpha_of": {name: self._share(one["right"], name) for name in sorted({*self._answers_of} - {""})},
        }

    def offs(self, one: dict[str, Any]) -> dict[str, Any]:
        """The fields of a layer's seed against its input."""
        return {
            "max_abs": max(one["max_abs"]),
            **_quantiles("max_abs_block", self._of_whole_blocks(one["max_abs"])),
            **_fields("relative", _mean(one["relative"], self._off_block_rows)),
            **_fields("attention_moves", _mean(one["attention"], self._off_block_rows)),
        }

    def best_offs(self, layers: Sequence[dict[str, Any]]) -> dict[str, float]:
        """The least max_abs of any layer, block by block."""
        best = [min(of_block) for of_block in zip(*(one["max_abs"] for one in layers), strict=True)]
        return _quantiles("best_max_abs", self._of_whole_blocks(best)) if best else {}

    def _of_whole_blocks(self, values: Sequence[float]) -> list[float]:
        most = max(self._off_block_rows)
        return [value for value, rows in zip(values, self._off_block_rows, strict=True) if rows == most]

    def _share(self, right: Sequence[int], name: str) -> Share:
        of = [index for index, other in enumerate(self._answers_of) if other == name]
        drafted = [self._drafted[index] for index in of]
        share = _mean([right[index] for index in of], drafted)
        return Share(share.value, share.se, sum(drafted))


def _mean(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    found = mean_of_blocks(sums, counts)
    assert found is not None, "a probe has rows and answers"
    return found


def _quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    found = spread(values, digits=6)
    return {name: median(values), f"{name}_low": found["p10"], f"{name}_high": found["p90"]}


def _fields(name: str, estimate: Estimate) -> dict[str, float | None]:
    return {name: estimate.value, f"{name}_se": estimate.se}
