"""What stations say of drafts in their hello, held against what a host would ask of them."""

from __future__ import annotations

from collections.abc import Sequence

from aeonflow.messages import Hello

from ..errors import UnsupportedOptionError
from ..plan import Plan
from ..speculate.policy import WINDOW
from .seeding import SPLIT_ROLES, Seeding


def check_drafts(seeding: Seeding, plan: Plan, hellos: Sequence[Hello]) -> None:
    """UnsupportedOptionError, naming the station, where one that has a part in drafts does not take them as they would
    be. `hellos` in the order of the plan's stations."""
    if seeding.mode != "draft" or not seeding.layers:
        return
    fork = min(seeding.layers) - 1
    for station, hello in zip(plan.stations, hellos, strict=True):
        if not any(role.name == "head" or (role.name in SPLIT_ROLES and role.hi >= fork) for role in station.roles):
            continue
        if why := _refusal(seeding, hello):
            raise UnsupportedOptionError(f"pair_x draft: station {hello.name} {why}")


def _refusal(seeding: Seeding, hello: Hello) -> str:
    offer = hello.draft
    if offer is None:
        return "takes no drafts"
    if seeding.seed not in offer.seeds:
        return f"takes drafts of seed {', '.join(offer.seeds) or 'none'}, not {seeding.seed}"
    if offer.window < WINDOW:
        return f"takes drafts {offer.window} positions ahead, {WINDOW} are needed"
    return "" if offer.queue > 0 else "lets no draft wait"
