"""Whether drafts run beside the canonical chain: only where they are measured to pay (Pair X `draft`).

With T a plain token's seconds, T' and D' the round trips of a canonical pass and of a draft while drafting, and α the
share of guesses that are right, a token costs (1 − α)·T' + α·D'. A few plain tokens give T, a trial gives the rest and
the seconds a token really took; drafting stays while it is at least 3 % better, else it is tried again after twice as
many plain tokens. One switch serves an engine: what pays is the machine's and the route's, more than a text's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

FIRST_PLAIN = 12  # tokens that measure T before the first trial
TRIAL = 32  # tokens of a trial
GIVE_UP_AFTER = 8  # drafts of a trial after which a bad prediction ends it
GIVE_UP_ABOVE = 1.10  # times T
KEEP_BELOW = 0.97  # times T
MIN_PLAIN, MAX_PLAIN = 64, 2048  # plain tokens after a trial that did not pay, doubling
CHECK_EVERY, CHECK = 512, 8  # drafted tokens after which T is measured again, over so many plain ones
MIN_PREDICTED_GAIN = 1.03  # by the plan's costs; below it no trial is made
WEIGHT_OF_NEW = 0.1
_SKIPPED = 1  # tokens after a change that still belong to what was before


class Phase(enum.StrEnum):
    PLAIN = "plain"
    TRIAL = "trial"
    DRAFTING = "drafting"
    CHECK = "check"


class Mean:
    """A mean in which older values fade."""

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(WEIGHT_OF_NEW, 1.0 / self.count) * (value - self.value)


class DraftSwitch:
    """Fed with what happens; `wants_drafts` is its answer. `permit` says whether stations have time for drafts."""

    def __init__(self, *, predicted_gain: float, permit: Callable[[], bool] = lambda: True) -> None:
        self.phase = Phase.PLAIN
        self.plain_s = Mean()  # T
        self.pass_s = Mean()  # T'
        self.draft_s = Mean()  # D'
        self.hits = self.misses = 0
        self._permit = permit
        self._may_try = predicted_gain >= MIN_PREDICTED_GAIN
        self._predicted_gain = predicted_gain
        self._alpha = Mean()
        self._until = FIRST_PLAIN  # tokens of this phase
        self._pause = MIN_PLAIN
        self._num_tokens = 0  # of this phase
        self._num_drafts = 0
        self._seconds = 0.0
        self._measured_s = 0.0  # a token while drafting

    @property
    def wants_drafts(self) -> bool:
        return self.phase in (Phase.TRIAL, Phase.DRAFTING)

    @property
    def is_permitted(self) -> bool:
        return self._permit()

    @property
    def predicted_s(self) -> float:
        """Seconds a token by the formula, from what was measured while drafting."""
        alpha = self._alpha.value
        return (1.0 - alpha) * self.pass_s.value + alpha * self.draft_s.value

    @property
    def token_s(self) -> float | None:
        """Seconds a token takes while drafting, in a trial by what the plan predicts; None while plain."""
        if self.phase is Phase.TRIAL:
            return self.plain_s.value / max(self._predicted_gain, 1.0) or None
        return (self._measured_s or None) if self.phase is Phase.DRAFTING else None

    def learn_pass(self, seconds: float) -> None:
        """A canonical pass of one row was answered after `seconds`."""
        if self.wants_drafts:
            self.pass_s.add(seconds)

    def learn_draft(self, seconds: float) -> None:
        """A draft came, `seconds` after the pass left that it grew from."""
        self.draft_s.add(seconds)
        self._num_drafts += 1

    def learn_guess(self, is_right: bool) -> None:
        """A draft's guess was verified."""
        self._alpha.add(float(is_right))
        self.hits += is_right
        self.misses += not is_right

    def learn_token(self, seconds: float) -> None:
        """A token came, `seconds` after the one before it, neither from a run of guesses."""
        self._num_tokens += 1
        if self._num_tokens <= _SKIPPED:
            return
        if self.wants_drafts:
            self._seconds += seconds
        else:
            self.plain_s.add(seconds)
        if self.phase is Phase.TRIAL and self._is_hopeless():
            self._go_plain()
        elif self._num_tokens >= self._until + _SKIPPED:
            self._phase_over()

    def to_json(self) -> dict[str, Any]:
        """Milliseconds and shares, for results and status."""
        return {
            "phase": self.phase.value,
            "hits": self.hits,
            "misses": self.misses,
            "alpha": round(self._alpha.value, 4),
            "plain_ms": round(1e3 * self.plain_s.value, 3),
            "pass_ms": round(1e3 * self.pass_s.value, 3),
            "draft_ms": round(1e3 * self.draft_s.value, 3),
            "predicted_ms": round(1e3 * self.predicted_s, 3),
            "measured_ms": round(1e3 * self._measured_s, 3),
            "predicted_gain": round(self._predicted_gain, 3),
            "permit": self.is_permitted,
        }

    def _is_hopeless(self) -> bool:
        return self._num_drafts >= GIVE_UP_AFTER and self.predicted_s > GIVE_UP_ABOVE * self.plain_s.value

    def _pays(self) -> bool:
        return self._measured_s <= KEEP_BELOW * self.plain_s.value

    def _phase_over(self) -> None:
        if self.wants_drafts:
            self._measured_s = self._seconds / (self._num_tokens - _SKIPPED)
        if self.phase is Phase.PLAIN:
            if self._may_try:
                self._enter(Phase.TRIAL, TRIAL)
        elif self.phase is Phase.DRAFTING:
            self._enter(Phase.CHECK, CHECK)
        elif self._pays():  # of a trial, or after a check
            self._pause = MIN_PLAIN
            self._enter(Phase.DRAFTING, CHECK_EVERY)
        else:
            self._go_plain()

    def _go_plain(self) -> None:
        self._enter(Phase.PLAIN, self._pause)
        self._pause = min(2 * self._pause, MAX_PLAIN)

    def _enter(self, phase: Phase, until: int) -> None:
        self.phase, self._until = phase, until
        self._num_tokens = self._num_drafts = 0
        self._seconds = 0.0
        if phase is Phase.TRIAL:
            self.pass_s, self.draft_s, self._alpha = Mean(), Mean(), Mean()
