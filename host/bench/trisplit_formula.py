"""What the arithmetic of chains says a token should take, from the delay that links obtained and measured computes.

A pass: hops x L + the computes on its path. A hop is one crossing: 3n + 3 of them a pass on a `trisplit` chain of n
layers, 6n + 4 on a relay, 2n + 3 with ffn slices. Speculation divides by the tokens a pass yields. The pipelined draft:
T (1 - a (1 - D / T)) with acceptance a, and D = (2n + f + 4) L + computes the round trip of a draft that forks at
layer f; on a relay (4n + 2f + 6) L. Where a stage waits for the later of several messages, their spread s counts as
well: 0.8 n s of a draft (whose GATE-UP joins two), n c_K sqrt(2) s of K ffn slices, c_K the mean of the largest of K
normal values. Knows no software cost on purpose: what a measurement has above it is what there is to gain.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

FORK_LAYER = 1
DRAFT_JOINS = 0.8
LARGEST_OF = {1: 0.0, 2: 0.564, 4: 1.029, 8: 1.424}  # mean of the largest of so many standard normal values
DIGITS = 7


class Formula(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; `drafting`: how much of a token's time the pipelined draft leaves, 1 without one; `joins_s`: waiting for
    the latest of slices."""

    hops: int
    hop_s: float
    joins_s: float
    compute_s: float
    tokens_per_pass: float
    drafting: float
    alpha: float | None

    @classmethod
    def of(
        cls,
        *,
        hops: int,
        hop_s: float,
        compute_s: float,
        tokens_per_pass: float,
        num_layers: int,
        drafts: tuple[int, int] | None = None,
        spread_s: float = 0.0,
        slices: int = 1,
        is_relay: bool = False,
    ) -> Self:
        """`drafts`: (drafted, accepted) of the pipelined draft, None without one; `spread_s`: standard deviation of a
        crossing; `slices`: of the ffn; `is_relay`: what goes from station to station crosses twice."""
        joins_s = num_layers * LARGEST_OF.get(slices, 0.0) * 2**0.5 * spread_s
        alpha: float | None = None
        drafting = 1.0
        if drafts is not None:
            alpha = drafts[1] / drafts[0]
            whole_s = hops * hop_s + compute_s
            between = 2 * num_layers + FORK_LAYER + 2  # hops from station to station
            draft_hops = between * (2 if is_relay else 1) + 2
            draft_s = draft_hops * hop_s + compute_s + DRAFT_JOINS * num_layers * spread_s
            drafting = 1 - alpha * (1 - min(1.0, draft_s / whole_s)) if whole_s else 1.0
            tokens_per_pass = max(1.0, tokens_per_pass)  # passes for guesses gone wrong are in the acceptance
        return cls(
            hops=hops,
            hop_s=hop_s,
            joins_s=joins_s,
            compute_s=compute_s,
            tokens_per_pass=tokens_per_pass,
            drafting=drafting,
            alpha=alpha,
        )

    @property
    def pass_s(self) -> float:
        return self.hops * self.hop_s + self.joins_s + self.compute_s

    @property
    def token_s(self) -> float:
        return self.pass_s * self.drafting / self.tokens_per_pass

    def to_json(self, token_s: float) -> dict[str, Any]:
        """Its parts, and what a measured token has above it: together, and for each hop of a pass."""
        above_s = token_s - self.token_s
        return {
            "hops": self.hops,
            "hop_s": round(self.hop_s, DIGITS),
            "joins_s": round(self.joins_s, DIGITS),
            "compute_s": round(self.compute_s, DIGITS),
            "tokens_per_pass": round(self.tokens_per_pass, 4),
            "drafting": round(self.drafting, 4),
            "alpha": None if self.alpha is None else round(self.alpha, 4),
            "token_s": round(self.token_s, DIGITS),
            "above_s": round(above_s, DIGITS),
            "above_per_hop_s": round(above_s * self.tokens_per_pass / self.hops, DIGITS) if self.hops else None,
        }
