"""What prompt lookup gains on answers that are known: the runs that it would verify, counted, with times by formula.

Nothing runs, so nothing is noise: a pass of R rows takes 1 + (R − 1) · extra plain passes, and the sizes of runs are
chosen by the same code and the same account of losses as in decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..speculate.drafters import EXPECTED
from ..speculate.lookup import Lookup
from ..speculate.sizes import RunSizer
from ..speculate.times import PassTimes

Answered = tuple[Sequence[int], Sequence[int]]  # token ids of a prompt and of its answer


class Replay(NamedTuple):
    """Of answers together: tokens after the first of each, passes, their time in plain passes; the worst one's gain."""

    tokens: int
    passes: int
    plain_passes: float
    worst: float

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes

    @property
    def gain(self) -> float:
        """Tokens a second, of plain decoding's."""
        return self.tokens / self.plain_passes


def replay(answers: Iterable[Answered], *, extra: float, shortest: int) -> Replay:
    """`extra`: what one more row costs, in plain passes; `shortest`: tokens that must match. Answers of one token say
    nothing and are left out; at least one must be longer."""
    found = [_one(prompt, answer, extra, shortest) for prompt, answer in answers if len(answer) > 1]
    return Replay(
        sum(one.tokens for one in found),
        sum(one.passes for one in found),
        sum(one.plain_passes for one in found),
        min(one.worst for one in found),
    )


def _one(prompt: Sequence[int], answer: Sequence[int], extra: float, shortest: int) -> Replay:
    times = PassTimes(1.0, extra)
    sizer, lookup = RunSizer(times, EXPECTED), Lookup([*prompt, answer[0]], shortest=shortest)
    at = passes = 0
    took = 0.0
    while (left := len(answer) - 1 - at) > 0:
        run = lookup.find([], min(left - 1, sizer.longest))
        guesses = run.tokens[: sizer.choose(run.gram, len(run.tokens))] if run.tokens else []
        right = 0
        while right < len(guesses) and guesses[right] == answer[at + 1 + right]:
            right += 1
        if guesses:
            sizer.learn(run.gram, len(guesses), right)
        sizer.book(1 + len(guesses), 1 + right)
        lookup.extend(answer[at + 1 : at + 2 + right])
        at += 1 + right
        passes += 1
        took += times.of(1 + len(guesses))
    return Replay(at, passes, took, at / took)
