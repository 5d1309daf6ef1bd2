"""Pair X as the host decides it: which layers of a route take residual seeds, and what was measured of a model.

The modes, what they cost and what is true of them: `docs/pair-x.md`.
"""

from .options import PairX
from .seeding import NO_SEEDING, Seeding, check_plan

__all__ = ["NO_SEEDING", "PairX", "Seeding", "check_plan"]
