"""Sources of guesses for tests: eager where the real ones weigh costs, wrong at random where they should not be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from host.speculate.lookup import Lookup, Run
from host.speculate.policy import Means
from host.speculate.sizes import RunSizer
from host.speculate.switch import DraftSwitch
from host.speculate.times import PassTimes


def measured_times() -> PassTimes:
    """Times that need no more measuring."""
    times = PassTimes(1.0, 0.0)
    times.num_plain = 99
    return times


class EagerSizer(RunSizer):
    """Verifies what there is, however few of its kind were right."""

    def __init__(self, rng: random.Random, most: int = 8) -> None:
        super().__init__(measured_times(), dict.fromkeys((0, 2, 3, 4, 6, "model"), 0.9))
        self._rng, self._most = rng, most

    def choose(self, kind: Any, most: int, draft_s: float = 0.0, than_s: float | None = None) -> int:
        return min(most, self._rng.randint(0, self._most))


class Oracle(Lookup):
    """Guesses what `truth` goes on with, each token wrong with a chance."""

    def __init__(self, rng: random.Random, truth: Sequence[int], vocab: int, wrong: float) -> None:
        super().__init__()
        self._rng, self._truth, self._vocab, self._wrong = rng, list(truth), vocab, wrong

    def find(self, guesses: Sequence[int], count: int) -> Run:
        at = len(self) + len(guesses)
        run = self._truth[at : at + count]
        return Run([self._rng.randrange(self._vocab) if self._rng.random() < self._wrong else t for t in run], 4)


class AlwaysDrafts(DraftSwitch):
    """Drafts whatever it costs."""

    def __init__(self, permit: Callable[[], bool] = lambda: True) -> None:
        super().__init__(predicted_gain=9.0, permit=permit)

    @property
    def wants_drafts(self) -> bool:
        return True


def plain() -> Means:
    return Means("off", measured_times())


def looking_up(seed: int) -> Means:
    """Prompt lookup, eager."""
    return Means("lookup", measured_times(), sizer=EagerSizer(random.Random(seed)), lookup=Lookup())


def guessing(seed: int, truth: Sequence[int], vocab: int, wrong: float) -> Means:
    """Guesses from the truth, some of them wrong."""
    rng = random.Random(seed)
    return Means("lookup", measured_times(), sizer=EagerSizer(rng), lookup=Oracle(rng, truth, vocab, wrong))


def drafting(permit: Callable[[], bool] = lambda: True) -> Means:
    """The pipelined draft alone."""
    return Means("off", measured_times(), drafts=AlwaysDrafts(permit))


def all_at_once(seed: int) -> Means:
    """Lookup, else drafts."""
    return looking_up(seed)._replace(mode="auto", drafts=AlwaysDrafts())
