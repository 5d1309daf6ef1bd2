"""The seeds of a route, with what was measured and kept of the model taken into account."""

from __future__ import annotations

from ..card import HostCard
from ..plan import Plan
from .gate_file import load_gate
from .options import PairX
from .report import load_report
from .seeding import NO_SEEDING, Seeding, resolve


def decide(pair_x: PairX, plan: Plan, card: HostCard, prefill_chunk: int | None) -> Seeding:
    """As `resolve`, with the model's probe report and the gate's last result. HostError for a file that is broken."""
    if not pair_x.is_on:
        return NO_SEEDING
    gate = load_gate(card.fingerprint)
    return resolve(
        pair_x,
        plan,
        residual=card.residual,
        report=load_report(card.fingerprint, pair_x.seed or "h"),
        gate_passed=gate is not None and gate.permits_live,
        prefill_chunk=prefill_chunk,
        hidden_size=card.hidden_size,
    )
