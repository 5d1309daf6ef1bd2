"""What answers with and without speculation say, and how much of it may be noise. Pure counting.

A ratio is the mean of two plain times over the speculating one. Plain times that differ by a factor e^d, d of variance
2 s² around 0, give ratios of variance 1.5 s²: so much may be noise. An answer is *slower beyond noise* when its ratio,
two standard errors up, is below 0.97.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from .measure import spread

SLOWEST = 0.97  # of plain: what speculation may cost
ERRORS = 2.0  # standard errors that a ratio must be below it
BLIND_BEYOND = 0.02  # of the time a plain token takes, beside what waiting for busy stations costs
SHOWN_CHARS = 48  # of a prompt


class Asked(NamedTuple):
    """A prompt and the set it is of."""

    of: str
    text: str


class Decoded(NamedTuple):
    """Tokens after the first of an answer, the seconds they took, of this process' processor, and what was guessed."""

    tokens: int
    seconds: float
    cpu_s: float
    speculation: dict[str, Any]


class Turn(NamedTuple):
    """Three answers to one prompt."""

    asked: Asked
    plain: Decoded
    speculating: Decoded
    again: Decoded

    @property
    def ratio(self) -> float:
        return (self.plain.seconds + self.again.seconds) / 2 / self.speculating.seconds

    @property
    def plain_ratio(self) -> float:
        """1 but for noise."""
        return self.plain.seconds / self.again.seconds


def report(turns: Sequence[Turn], *, with_cpu: bool = False) -> dict[str, Any]:
    """Figures of at least one turn, those of sets, and every answer. `with_cpu`: also the ratio of processor times."""
    noise = ratio_noise(turns)
    worst = min(turns, key=lambda turn: turn.ratio)
    names = dict.fromkeys(turn.asked.of for turn in turns)
    slower = [turn for turn in turns if turn.ratio * math.exp(ERRORS * noise) < SLOWEST]
    found = {
        **_of(turns),
        "ratios": spread([turn.ratio for turn in turns], 4),
        "worst": {"ratio": round(worst.ratio, 4), "prompt": _shown(worst)},
        "below_0.97": _below([turn.ratio for turn in turns]),
        "noise": {
            "se": round(noise, 4),
            "plain_ratios": spread([turn.plain_ratio for turn in turns], 4),
            "plain_worst": round(min(min(turn.plain_ratio, 1 / turn.plain_ratio) for turn in turns), 4),
            "plain_below_0.97": _below([turn.plain_ratio for turn in turns]),
        },
        "slower_beyond_noise": [_shown(turn) for turn in slower],
        "sets": {name: _of([turn for turn in turns if turn.asked.of == name]) for name in names},
        "each": [
            {
                "set": turn.asked.of,
                "prompt": _shown(turn),
                "tokens": turn.plain.tokens,
                "ratio": round(turn.ratio, 4),
                "plain_ratio": round(turn.plain_ratio, 4),
                "passes": turn.speculating.speculation["passes"],
            }
            for turn in turns
        ],
        "last": turns[-1].speculating.speculation,
    }
    if with_cpu:
        plain_s = sum(turn.plain.cpu_s + turn.again.cpu_s for turn in turns) / 2
        found["cpu_ratio"] = round(plain_s / sum(turn.speculating.cpu_s for turn in turns), 4)
    return found


def ratio_noise(turns: Sequence[Turn]) -> float:
    """The standard error of one answer's ratio, relative, by how far plain times lie apart."""
    return math.sqrt(0.75 * fmean(math.log(turn.plain_ratio) ** 2 for turn in turns))


def blind_bound(layer_s: float, hop_s: float) -> float:
    """The least share of plain's rate with drafts that are all wrong, on stations that have the time.

    1 / (1 + S / (2 (3L + S)) + 2 %), S the compute of a layer, L a hop, both in seconds.
    """
    return 1 / (1 + layer_s / (2 * (3 * hop_s + layer_s)) + BLIND_BEYOND)


def is_at_least(share: float, turns: Sequence[Turn]) -> bool:
    """Is speculating at least `share` of plain's rate over all answers, as far as their noise tells?"""
    ratio = _of(turns)["ratio"]
    return bool(ratio * math.exp(ERRORS * ratio_noise(turns) / math.sqrt(len(turns))) >= share)


def _of(turns: Sequence[Turn]) -> dict[str, Any]:
    tokens = sum(turn.plain.tokens for turn in turns)
    plain_s = sum(turn.plain.seconds + turn.again.seconds for turn in turns) / 2
    speculating_s = sum(turn.speculating.seconds for turn in turns)
    told = [turn.speculating.speculation for turn in turns]
    return {
        "answers": len(turns),
        "tokens": tokens,
        "plain_tok_s": round(tokens / plain_s, 3),
        "tok_s": round(tokens / speculating_s, 3),
        "ratio": round(plain_s / speculating_s, 4),
        "tokens_per_pass": round(tokens / sum(one["passes"] for one in told), 4),
        "drafted": sum(one["drafted"] for one in told),
        "accepted": sum(one["accepted"] for one in told),
    }


def _below(ratios: Sequence[float]) -> dict[str, float]:
    count = sum(ratio < SLOWEST for ratio in ratios)
    return {"count": count, "share": round(count / len(ratios), 4)}


def _shown(turn: Turn) -> str:
    return turn.asked.text[:SHOWN_CHARS]
