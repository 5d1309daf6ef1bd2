"""What a draft computes: its own formula over canonical rows, its predecessors' where those are not there yet."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow.tensors import Kind, Tensor
from stations.core.drafts import candidates
from stations.kernels import Span
from stations.kernels.base import add_rows
from stations.kernels.residual import normed_gate_up
from stations.kv import LayerKvCache
from stations.kv.draft_view import DraftView

from .cases import ABOVE_1, LAYERS, NUM_PROMPT, Case
from .drafting import DraftNet, a_pass

ATTN_3 = 3 * 3  # stations of the per-layer shape: attn, gate_up and down of each layer, embed, head
X_TO_ATTN_3 = (ATTN_3 - 1, ATTN_3)


def drain(net: DraftNet, case: Case) -> list[list[Tensor]]:
    """Everything that can happen; the answers."""
    while net.step(case.rng()):
        pass
    answers = [answer.tensors for answer in net.to_host]
    net.to_host.clear()
    return answers


def drafts_of(answers: list[list[Tensor]]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Candidates and their logits by position."""
    return {
        ids.first: (np.frombuffer(ids.data, np.uint32), np.frombuffer(logits.data, np.float32))
        for ids, logits in (tensors for tensors in answers if tensors[0].kind == Kind.DRAFT)
    }


def drafted(case: Case, ids: list[int], seeded: tuple[int, ...], seed: str) -> np.ndarray:
    """Logits of the draft of the last of `ids`, composed from the kernels: canonical rows below it, seeds above."""
    backend, card = case.solo, case.model.card
    caches = [LayerKvCache(card.num_kv_heads, card.head_dim) for _ in range(LAYERS)]
    x = backend.embed(np.array(ids, np.uint32), 0, 1)
    before, rows = len(ids) - 1, x[-1:]
    backend.block(0, LAYERS - 1, x[:-1], [[Span(cache, 0, before)] for cache in caches])
    inputs, sums = {0: rows}, {}
    for layer in range(LAYERS):
        if layer < min(seeded):
            source, spans = rows, [Span(caches[layer], before, 1)]
        else:
            view = DraftView(card.num_kv_heads, card.head_dim)
            view.show(caches[layer], before, [])
            seeds = sums if seed == "h" else inputs
            source, spans = seeds[layer - 1] if layer in seeded else rows, [Span(view, before, 1)]
        sums[layer] = h = add_rows(rows, backend.attn_delta(layer, source, spans))
        inputs[layer + 1] = rows = backend.down(layer, h, normed_gate_up(backend, layer, h))
    return backend.head(rows, 0, 1)[0]


@pytest.mark.parametrize("seed", ["h", "x"])
@pytest.mark.parametrize("seeded", [ABOVE_1, (1, 2, 3, 4), (1, 3), (2, 4), (4,)])
@pytest.mark.parametrize("shape", ["trisplit", "per layer"])
def test_a_draft_is_the_seeded_pass_over_canonical_rows(case: Case, shape: str, seeded, seed: str) -> None:
    net = case.net(shape, seeded=seeded, seed=seed)
    net.send(a_pass(case.tokens[:4], 0))
    drain(net, case)
    net.send(a_pass(case.tokens[4:5], 4, grow=True))
    answers = drain(net, case)
    ids, logits = drafts_of(answers)[4]
    expected = drafted(case, case.tokens[:5], seeded, seed)
    assert ids.tolist() == sorted(range(512), key=lambda i: (-expected[i], i))[:64]
    assert np.array_equal(logits, expected[ids])
    (canonical,) = (tensors for tensors in answers if tensors[0].kind == Kind.CANONICAL)
    assert not np.array_equal(np.frombuffer(canonical[0].data, np.float32), expected)


def test_a_draft_of_a_new_epoch_never_reads_a_row_of_the_wrong_token(case: Case) -> None:
    """H1: the draft outruns the canonical pass of the new epoch at a layer that still holds the wrong token's row."""
    tokens, wrong = case.tokens, (case.tokens[NUM_PROMPT] + 1) % 512

    def run(net: DraftNet, *, with_miss: bool) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        net.send(a_pass(tokens[:NUM_PROMPT], 0))
        if with_miss:
            net.send(a_pass([wrong], NUM_PROMPT))
        drain(net, case)
        net.frozen = {X_TO_ATTN_3}
        epoch = {"epoch": 2, "base": NUM_PROMPT}
        net.send(a_pass(tokens[NUM_PROMPT : NUM_PROMPT + 1], NUM_PROMPT, grow=True, **epoch))
        found = drafts_of(drain(net, case))
        session = net.stations[ATTN_3].sessions.get(9)
        assert session.length(3) == NUM_PROMPT  # cut by the first frame of the new epoch, a draft's
        net.send(a_pass(tokens[NUM_PROMPT + 1 : NUM_PROMPT + 2], NUM_PROMPT + 1, grow=True, **epoch))
        found.update(drafts_of(drain(net, case)))
        assert net.stations[ATTN_3].counters.events["draft_scratch_reads"] == 1
        return found

    clean, missed = run(case.net("per layer"), with_miss=False), run(net := case.net("per layer"), with_miss=True)
    assert set(clean) == set(missed) == {NUM_PROMPT, NUM_PROMPT + 1}
    for position, (ids, logits) in clean.items():
        assert np.array_equal(missed[position][0], ids)
        assert np.array_equal(missed[position][1], logits)
    ids, logits = clean[NUM_PROMPT]
    assert np.array_equal(logits, drafted(case, tokens[: NUM_PROMPT + 1], ABOVE_1, "h")[ids])
    net.frozen.clear()
    rows = [tensors for tensors in drain(net, case) if tensors[0].kind == Kind.CANONICAL]
    assert len(rows) == 2
    for tensors, expected in zip(rows, case.logits[1:], strict=False):
        assert np.array_equal(np.frombuffer(tensors[0].data, np.float32), expected)


def test_of_a_pass_of_several_rows_the_last_one_grows_and_is_ahead_of_the_others(case: Case) -> None:
    net = case.net("trisplit")
    net.send(a_pass(case.tokens[:5], 0, grow=True))
    assert [tensors[0].kind for tensors in drain(net, case)] == [Kind.CANONICAL]
    counted = net.stations[0].counters.events
    assert (counted["drafts_grown"], counted["drafts_starved"], counted["seeds_received"]) == (1, 1, 1)


def test_a_draft_that_lacks_a_row_is_dropped_and_counted(case: Case) -> None:
    net = case.net("per layer")
    net.frozen = {X_TO_ATTN_3}
    net.send(a_pass(case.tokens[:3], 0))
    assert drain(net, case) == []
    net.send(a_pass(case.tokens[3:4], 3, grow=True))
    assert drain(net, case) == []
    assert net.stations[ATTN_3].counters.events["drafts_starved"] == 1
    net.frozen.clear()
    assert [tensors[0].kind for tensors in drain(net, case)] == [Kind.CANONICAL, Kind.CANONICAL]


def test_candidates_fall_by_logit_and_ties_by_id() -> None:
    logits = np.array([1, 5, 5, -2, 5, 0], np.float32)
    ids, values = candidates(logits, lo=100, most=4)
    assert ids.tolist() == [[101, 102, 104, 100]]
    assert values.tolist() == [[5, 5, 5, 1]]
    assert candidates(logits, 0, most=2)[0].tolist() == [[1, 2]]
    assert candidates(logits, 0)[0].tolist() == [[1, 2, 4, 0, 5, 3]]
    assert (ids.dtype, values.dtype) == (np.uint32, np.float32)
