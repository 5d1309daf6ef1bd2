"""What an evaluation found: one option beside the exact cache, as values for JSON and as a line for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from .estimate import Estimate, mean
from .score import Comparison
from .track import Pace
from .windows import Window

F64 = npt.NDArray[np.float64]

TEXT_BLOCK, RECALL_BLOCK = 32, 8  # tokens taken as one cluster; a passage has 56
WHOLE = 1 << 30  # all of a run


class Side(msgspec.Struct, frozen=True):
    """One cache by itself. Rates of the passes of this evaluation; `kv_bytes` of a whole window.

    `ppl` over ordinary text, `recall_ppl` over repeated passages.
    """

    kv: dict[str, Any]
    ppl: Estimate | None
    recall_ppl: Estimate | None
    kv_bytes: int
    prefill_tok_s: float
    decode_tok_s: float


class Evaluation(msgspec.Struct, frozen=True):
    """An option beside the exact cache: `kl` mean KL(exact || option), `top1` share of equal likeliest tokens,
    `logits_rms` root mean square of what logits differ by.

    `delta_ppl_percent` over ordinary text, `recall` = PPL ratio on repeated passages: errors of paired differences.
    `bytes_ratio`, `prefill_ratio`, `decode_ratio`: option / exact.
    """

    option: Side
    exact: Side
    kl: Estimate | None
    top1: Estimate | None
    logits_rms: float
    delta_ppl_percent: Estimate | None
    recall: Estimate | None
    bytes_ratio: float
    prefill_ratio: float
    decode_ratio: float
    num_windows: int
    num_text_tokens: int
    num_recall_tokens: int


class Rows:
    """Scores of all windows, row by row; index 0 of a window's arrays is its first scored row."""

    def __init__(self) -> None:
        self.nll: list[F64] = []
        self.kl: list[F64] = []
        self.agree: list[F64] = []
        self.square: list[F64] = []
        self._parts: list[Comparison] = []

    def add(self, part: Comparison) -> None:
        self._parts.append(part)

    def end_window(self) -> None:
        nll, kl, agree, square = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        self._parts.clear()
        self.nll.append(nll)
        self.kl.append(kl)
        self.agree.append(agree)
        self.square.append(square)


def side(kv: dict[str, Any], windows: Sequence[Window], rows: Rows, kv_bytes: int, pace: Pace) -> Side:
    """Of one cache's rows."""
    text, recall = _text(windows, rows.nll), _recall(windows, rows.nll)
    return Side(
        kv=kv,
        ppl=_exp(mean(text, TEXT_BLOCK)),
        recall_ppl=_exp(mean(recall, RECALL_BLOCK)),
        kv_bytes=kv_bytes,
        prefill_tok_s=_rate(pace.prefill_rows, pace.prefill_s),
        decode_tok_s=_rate(1, statistics.median(pace.row_s)) if pace.row_s else 0.0,
    )


def evaluation(windows: Sequence[Window], rows: Rows, exact_rows: Rows, option: Side, exact: Side) -> Evaluation:
    """The comparison, from the rows of both."""
    worse = [a - b for a, b in zip(rows.nll, exact_rows.nll, strict=True)]
    text, recall = _text(windows, worse), _recall(windows, worse)
    ratio = _exp(mean(text, TEXT_BLOCK))
    return Evaluation(
        option=option,
        exact=exact,
        kl=mean(_text(windows, rows.kl), TEXT_BLOCK),
        top1=mean(_text(windows, rows.agree), TEXT_BLOCK),
        logits_rms=_root_mean(_text(windows, rows.square)),
        delta_ppl_percent=ratio.minus(1.0).times(100.0) if ratio is not None else None,
        recall=_exp(mean(recall, RECALL_BLOCK)),
        bytes_ratio=_rate(option.kv_bytes, exact.kv_bytes),
        prefill_ratio=_rate(option.prefill_tok_s, exact.prefill_tok_s),
        decode_ratio=_rate(option.decode_tok_s, exact.decode_tok_s),
        num_windows=len(windows),
        num_text_tokens=sum(map(len, text)),
        num_recall_tokens=sum(map(len, recall)),
    )


def _root_mean(columns: Sequence[F64]) -> float:
    """Of values that are means of squares; 0.0 of none."""
    values = np.concatenate(columns) if columns else np.zeros(0)
    return float(np.sqrt(values.mean())) if values.size else 0.0


def gain(windows: Sequence[Window], rows: Rows, other: Rows) -> Estimate | None:
    """How much less KL than `other` has, over ordinary text: the mean of paired differences, with its error."""
    less = [b - a for a, b in zip(rows.kl, other.kl, strict=True)]
    return mean(_text(windows, less), TEXT_BLOCK)


class Difference(msgspec.Struct, frozen=True):
    """How two options differ over the same tokens, the first less the second: mean of paired differences, its error
    from whole windows taken as independent. `better`: the share of windows in which the first has the lower KL."""

    kl: Estimate
    delta_ppl_percent: Estimate
    recall_percent: Estimate
    better: float
    num_windows: int
    num_text_tokens: int


def difference(windows: Sequence[Window], rows: Rows, other: Rows) -> Difference | None:
    """Of the KL of both, and of the perplexity of the first over that of the second, on ordinary text and on repeated
    passages; None where there is nothing to score."""
    more = [a - b for a, b in zip(rows.kl, other.kl, strict=True)]
    worse = [a - b for a, b in zip(rows.nll, other.nll, strict=True)]
    text, recall = _text(windows, more), _by_window(_recall(windows, worse), len(windows))
    kl, ppl = mean(text, WHOLE), _exp(mean(_text(windows, worse), WHOLE))
    recalled = _exp(mean(recall, WHOLE))
    if kl is None or ppl is None or recalled is None:
        return None
    return Difference(
        kl=kl,
        delta_ppl_percent=ppl.minus(1.0).times(100.0),
        recall_percent=recalled.minus(1.0).times(100.0),
        better=sum(bool(one.sum() < 0) for one in text) / len(windows),
        num_windows=len(windows),
        num_text_tokens=sum(map(len, text)),
    )


def _by_window(passages: Sequence[F64], num_windows: int) -> list[F64]:
    """The passages of each window as one run."""
    each = len(passages) // num_windows
    return [np.concatenate(passages[at : at + each]) for at in range(0, len(passages), each)]


def _text(windows: Sequence[Window], columns: Sequence[F64]) -> list[F64]:
    return [column[_shift(w.text_rows, w)] for w, column in zip(windows, columns, strict=True)]


def _recall(windows: Sequence[Window], columns: Sequence[F64]) -> list[F64]:
    return [column[_shift(part, w)] for w, column in zip(windows, columns, strict=True) for part in w.recall_rows]


def _shift(rows: slice, window: Window) -> slice:
    return slice(rows.start - window.first_scored, rows.stop - window.first_scored)


def _exp(estimate: Estimate | None) -> Estimate | None:
    return None if estimate is None else estimate.exp()


def _rate(amount: float, of: float) -> float:
    return amount / of if of else 0.0
