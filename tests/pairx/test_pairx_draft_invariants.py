"""Drafts between cores under an adversarial scheduler: the invariants of `docs/protocol.md`, *Drafts*, one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stations.core.scratch import DRAFT_WINDOW

from .cases import ABOVE_1, LAYERS, NUM_PROMPT, NUM_TOKENS, SHAPES, Case
from .drafting import DraftHost


def generate(
    case: Case, *, chance: int, alpha: float | None, runs: bool, drop: float, slow: float, seeded: tuple[int, ...],
    shape: str, seed: str,
) -> None:  # fmt: skip
    """A generation among adversaries, and every check there is."""
    net = case.net(shape, drop=drop, slow=slow, chance=chance, seeded=seeded, seed=seed)
    host = DraftHost(net, case.tokens, NUM_PROMPT, random.Random(chance), alpha=alpha, runs=runs)
    host.run()
    case.check(net, host)
    assert host.errors == 0


ADVERSITY = {
    "chance": st.integers(0, 2**32),
    "alpha": st.sampled_from([None, 0.0, 0.5, 0.83, 1.0]),
    "runs": st.booleans(),
    "drop": st.sampled_from([0.0, 0.0, 0.02, 0.3]),
    "slow": st.sampled_from([0.0, 0.9]),
    "seeded": st.sampled_from([ABOVE_1, (1, 2, 3, 4), (2, 4), (4,)]),
    "shape": st.sampled_from(list(SHAPES)),
    "seed": st.sampled_from(["h", "x"]),
}


@settings(deadline=None, max_examples=10)
@given(**ADVERSITY)
def test_tokens_logits_and_caches_are_those_of_a_plain_run(case: Case, **adversity: Any) -> None:
    """I1 to I10, whatever drafts say, however late anything comes, whichever draft frames are lost."""
    generate(case, **adversity)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(deadline=None, max_examples=400)
@given(**ADVERSITY)
def test_the_same_of_very_many_runs(case: Case, **adversity: Any) -> None:
    generate(case, **adversity)


@pytest.mark.parametrize("shape", SHAPES)
def test_without_grow_frames_and_bytes_are_those_of_a_route_without_drafts(case: Case, shape: str) -> None:
    """I11."""
    logs = []
    for options in ({"pair_x": "off", "seeded": ()}, {}):
        net = case.net(shape, **options)
        host = DraftHost(net, case.tokens, NUM_PROMPT, random.Random(5), grow=False)
        host.run()
        case.check(net, host)
        logs.append(net.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 100


@pytest.mark.parametrize("seeded", [ABOVE_1, tuple(range(1, LAYERS))], ids=["fork 1", "fork 0"])
def test_drafts_go_on_to_the_window_while_canonical_rows_stand_still_and_no_further(
    case: Case, seeded: tuple[int, ...]
) -> None:
    """I13, and I7 of the host: nothing waits for a draft, and no draft waits for ever."""
    net = case.net("per layer", seeded=seeded)
    host = DraftHost(net, case.tokens, NUM_PROMPT, random.Random(3), alpha=1.0)
    host.begin()
    while host.known < NUM_PROMPT + 2:
        assert host.step()
    above = min(seeded)
    net.frozen = {(3 * above - 1, 3 * above)}  # x of the fork's down to the attention above it
    while host.step():
        pass
    known = host.known
    assert host.lead == DRAFT_WINDOW
    assert all(not station.queue.length for station in net.stations)
    assert net.max_scratch >= DRAFT_WINDOW
    net.frozen.clear()
    while not host.is_over:
        assert host.step()
    assert host.known > known
    case.check(net, host)


def test_every_token_is_a_hit_when_drafts_are_right_and_come_in_time(case: Case) -> None:
    net = case.net("per layer", slow=1.0)
    host = DraftHost(net, case.tokens, NUM_PROMPT, random.Random(1), alpha=1.0)
    host.run()
    case.check(net, host)
    assert host.hits >= NUM_TOKENS - NUM_PROMPT - 4
    assert host.misses == 0
