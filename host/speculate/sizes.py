"""How many guesses a pass verifies: as many as pay by what passes cost and how often guesses were right; often none.

With α the share of guesses that are right, given that all before them in the run were, a pass with m guesses yields

    E(m) = 1 + α + … + α^m = (1 − α^(m+1)) / (1 − α)        tokens (Leviathan, Kalman and Matias 2023, eq. 1)

for the time of 1 + m rows. m is where E(m) a second is largest, at most N, which follows what is accepted (4 to 32). An
account of what speculation won and lost against plain decoding bounds the loss: what could be lost must be there.
"""

from __future__ import annotations

from collections.abc import Hashable

from .times import PassTimes

MIN_RUN, START_RUN, MAX_RUN = 4, 8, 32
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

MIN_GAIN = 1.02  # of tokens a second that are expected, below it a pass stays plain
START_CREDIT = 1.0  # plain passes that a generation may lose at first,
CREDIT_A_TOKEN = 0.015  # and for each token: together at most 3 % of an answer of 70 tokens or more
MAX_CREDIT = 24.0  # plain passes: old gains do not pay for endless losses
PRIOR_TRIALS = 4.0  # guesses that an expectation weighs
MEMORY_TRIALS = 64.0  # guesses after which older ones have faded


class RunSizer:
    """One for a generation. `kind` tells guesses of different worth apart (the n-gram's length, a model)."""

    def __init__(self, times: PassTimes, expected: dict[Hashable, float]) -> None:
        """`expected`: the share of right guesses to begin with, by kind."""
        self._times = times
        self._expected = expected
        self._seen: dict[Hashable, tuple[float, float]] = {}  # right ones and trials
        self._credit = START_CREDIT
        self.longest = START_RUN

    def alpha(self, kind: Hashable) -> float:
        """The share of guesses of this kind that are right where they are looked at."""
        right, trials = self._seen.get(kind, (0.0, 0.0))
        return (right + PRIOR_TRIALS * self._expected[kind]) / (trials + PRIOR_TRIALS)

    def choose(self, kind: Hashable, most: int, draft_s: float = 0.0, than_s: float | None = None) -> int:
        """Guesses to verify in the next pass, at most `most`; `draft_s` seconds are spent on making one. 0: none.

        `than_s`: seconds a token takes without, where that is not a plain pass."""
        times, alpha = self._times, min(self.alpha(kind), 0.999)
        plain_s = times.of(1)
        best, best_rate = 0, MIN_GAIN / (plain_s if than_s is None else min(than_s, plain_s))
        limit = min(most, self.longest)
        sizes = [size for size in _SIZES if size < limit]
        for size in (*sizes, limit):
            if size < 1:
                continue
            cost_s = times.of(1 + size) + size * draft_s
            rate = (1 - alpha ** (size + 1)) / (1 - alpha) / cost_s
            if rate > best_rate and cost_s - plain_s <= self._credit * plain_s:
                best, best_rate = size, rate
        return best

    def learn(self, kind: Hashable, guessed: int, accepted: int) -> None:
        """Of a run of `guessed` the first `accepted` were right."""
        if guessed >= self.longest and accepted == guessed:
            self.longest = min(2 * self.longest, MAX_RUN)
        elif 2 * accepted < min(guessed, self.longest) and guessed >= MIN_RUN:  # few guesses say little of long runs
            self.longest = max(self.longest // 2, MIN_RUN)
        right, trials = self._seen.get(kind, (0.0, 0.0))
        looked_at = min(accepted + 1, guessed)
        fade = max(0.0, 1.0 - looked_at / MEMORY_TRIALS)
        self._seen[kind] = (right * fade + accepted, trials * fade + looked_at)

    def book(self, rows: int, tokens: int, draft_s: float = 0.0) -> None:
        """A pass of `rows` rows gave `tokens` tokens, after `draft_s` seconds of drafting."""
        plain_s = self._times.of(1)
        gain = tokens - (self._times.of(rows) + draft_s) / plain_s
        self._credit = min(self._credit + gain + CREDIT_A_TOKEN * tokens, MAX_CREDIT)
