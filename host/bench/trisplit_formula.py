"""What the arithmetic of chains says a token should take, from the delay that links obtained and measured computes.

A pass: hops x L + the computes on its path. A hop is one crossing: 3n + 3 of them a pass on a `trisplit` chain of n
layers, 6n + 4 on a relay, 2n + 3 with ffn slices. Speculation divides by the tokens a pass yields. The pipelined draft:
T (1 - a (1 - D / T)) with acceptance a, and D = (2n + f + 4) L + computes the round trip of a draft that forks at
layer f. Knows no software cost on purpose: what a measurement has above it is what there is to gain.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

FORK_LAYER = 1
DIGITS = 7


class Formula(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; `drafting`: how much of a token's time the pipelined draft leaves, 1 without one."""

    hops: int
    hop_s: float
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
        drafts: tuple[int, int] | None,
    ) -> Self:
        """`drafts`: (drafted, accepted) of the pipelined draft, None without one."""
        alpha: float | None = None
        drafting = 1.0
        if drafts is not None:
            alpha = drafts[1] / drafts[0]
            whole_s = hops * hop_s + compute_s
            draft_s = (2 * num_layers + FORK_LAYER + 4) * hop_s + compute_s
            drafting = 1 - alpha * (1 - min(1.0, draft_s / whole_s)) if whole_s else 1.0
            tokens_per_pass = max(1.0, tokens_per_pass)  # passes for guesses gone wrong are in the acceptance
        return cls(
            hops=hops,
            hop_s=hop_s,
            compute_s=compute_s,
            tokens_per_pass=tokens_per_pass,
            drafting=drafting,
            alpha=alpha,
        )

    @property
    def pass_s(self) -> float:
        return self.hops * self.hop_s + self.compute_s

    @property
    def token_s(self) -> float:
        return self.pass_s * self.drafting / self.tokens_per_pass

    def to_json(self, token_s: float) -> dict[str, Any]:
        """Its parts, and what a measured token has above it: together, and for each hop of a pass."""
        above_s = token_s - self.token_s
        return {
            "hops": self.hops,
            "hop_s": round(self.hop_s, DIGITS),
            "compute_s": round(self.compute_s, DIGITS),
            "tokens_per_pass": round(self.tokens_per_pass, 4),
            "drafting": round(self.drafting, 4),
            "alpha": None if self.alpha is None else round(self.alpha, 4),
            "token_s": round(self.token_s, DIGITS),
            "above_s": round(above_s, DIGITS),
            "above_per_hop_s": round(above_s * self.tokens_per_pass / self.hops, DIGITS) if self.hops else None,
        }
