"""A row's bits never depend on its company: every weight type, every number of rows, any cut of a sequence."""

from __future__ import annotations

import numpy as np
import pytest

from stations.kernels import Span
from stations.models.card import Rope

from .tiny import TinyWeights, attn64, bits, new_cache, norm64, rows, run_layers, tiny_card
from .weights import KINDS

CLOSE = 2e-6  # of a result's largest value: f32 sums of 256 to 512 terms, measured below 5e-7


def _close(found: np.ndarray, exact: np.ndarray) -> bool:
    return bool(np.abs(found - exact).max() <= CLOSE * np.abs(exact).max())


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_1_to_33_rows_give_each_row_the_bits_it_has_alone(kind, fast) -> None:
    weights = TinyWeights(kind)
    kernels = fast(weights)
    x = rows(33, 256)
    alone = np.concatenate([kernels.head(row[None], 0, 1) for row in x])
    for count in range(1, 34):
        assert np.array_equal(bits(kernels.head(x[:count], 0, 1)), bits(alone[:count])), count
    n = norm64(x, weights.norm("head", 0, "final_norm"), 1e-5)
    assert _close(alone, n @ weights.values(0, "head").T)


@pytest.mark.parametrize("kind", KINDS)
def test_gate_up_and_down_rows_are_the_same_alone_and_in_any_batch_and_close_to_f64(kind, fast) -> None:
    weights = TinyWeights(kind)
    kernels = fast(weights)
    x = rows(23, 256)
    u = kernels.gate_up(1, x)
    out = kernels.down(1, x, u)
    for lo, hi in ((0, 1), (1, 3), (3, 7), (7, 23)):
        assert np.array_equal(bits(kernels.gate_up(1, x[lo:hi])), bits(u[lo:hi]))
        assert np.array_equal(bits(kernels.down(1, x[lo:hi], u[lo:hi])), bits(out[lo:hi]))
    gate, up = x @ weights.values(1, "gate").T, x @ weights.values(1, "up").T
    assert _close(u, gate / (1 + np.exp(-gate)) * up)
    assert _close(out, x + u.astype(np.float64) @ weights.values(1, "down").T)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("hidden", "heads", "kv_heads", "head_dim", "rope_dim", "ffn", "vocab"),
    [(45, 3, 1, 20, 12, 37, 50), (80, 5, 5, 16, 16, 100, 33), (24, 2, 2, 12, 12, 8, 17)],
)
def test_odd_sizes_are_close_to_f64_and_row_invariant(
    kind, hidden, heads, kv_heads, head_dim, rope_dim, ffn, vocab, fast
) -> None:
    card = tiny_card(
        hidden_size=hidden, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, ffn_size=ffn, vocab_size=vocab,
        rope=Rope(theta=500.0, dim=rope_dim),
    )  # fmt: skip
    weights = TinyWeights(kind, card)
    kernels = fast(weights)
    x = rows(19, hidden)
    h, n = kernels.attn(0, x, [Span(new_cache(kernels, 19), 0, 19)])
    assert h.shape == n.shape == (19, hidden)
    assert _close(h, attn64(weights, 0, x))
    u = kernels.gate_up(0, n)
    out = kernels.down(0, h, u)
    assert u.shape == (19, ffn)
    assert np.array_equal(bits(kernels.down(0, h[4:5], kernels.gate_up(0, n[4:5]))), bits(out[4:5]))
    logits = kernels.head(out, 0, 1)
    assert logits.shape == (19, vocab)
    assert np.array_equal(bits(kernels.head(out[7:9], 0, 1)), bits(logits[7:9]))
    whole = run_layers(kernels, x, [19])
    assert np.array_equal(bits(run_layers(kernels, x, [1, 6, 12])), bits(whole))


@pytest.mark.parametrize("cuts", [[40], [1] * 40, [7] * 5 + [5], [13, 1, 26], [39, 1]])
def test_a_sequence_gives_the_same_bits_in_any_chunks(cuts, fast) -> None:
    kernels = fast(TinyWeights("q4_1"))
    x = rows(40, 256)
    assert np.array_equal(bits(run_layers(kernels, x, cuts)), bits(run_layers(kernels, x, [40])))


def test_attention_is_close_to_f64(fast) -> None:
    weights = TinyWeights("q8_0")
    kernels = fast(weights)
    x = rows(70, 256)
    h, n = kernels.attn(1, x, [Span(new_cache(kernels, 8), 0, 70)])
    exact = attn64(weights, 1, x)
    assert _close(h, exact)
    assert _close(n, norm64(exact, weights.norm("attn", 1, "norm2"), 1e-5))


def test_sessions_of_different_depth_in_one_batch_get_the_bits_they_have_alone(fast) -> None:
    kernels = fast(TinyWeights("q4_k"))
    lengths, steps = (3, 17, 40, 1), (1, 5, 2, 1)
    prompts = [rows(n, 256, seed=n) for n in lengths]
    nexts = [rows(n, 256, seed=50 + n) for n in steps]
    alone = []
    for prompt, following in zip(prompts, nexts, strict=True):
        cache = new_cache(kernels, 64)
        kernels.attn(0, prompt, [Span(cache, 0, len(prompt))])
        alone.append(kernels.attn(0, following, [Span(cache, len(prompt), len(following))]))
    caches = [new_cache(kernels, 64) for _ in lengths]
    kernels.attn(0, np.concatenate(prompts), [Span(c, 0, n) for c, n in zip(caches, lengths, strict=True)])
    spans = [Span(c, n, s) for c, n, s in zip(caches, lengths, steps, strict=True)]
    h, n = kernels.attn(0, np.concatenate(nexts), spans)
    assert np.array_equal(bits(h), bits(np.concatenate([a for a, _ in alone])))
    assert np.array_equal(bits(n), bits(np.concatenate([b for _, b in alone])))
    assert [c.pos_len for c in caches] == [4, 22, 42, 2]


def test_block_equals_its_roles_one_after_the_other(fast) -> None:
    kernels = fast(TinyWeights("q5_k"))
    x = rows(21, 256)
    expected = x
    for layer in range(2):
        h, n = kernels.attn(layer, expected, [Span(new_cache(kernels, 32), 0, 21)])
        expected = kernels.down(layer, h, kernels.gate_up(layer, n))
    assert np.array_equal(bits(run_layers(kernels, x, [21])), bits(expected))


def test_batches_beyond_the_work_areas_are_cut_without_a_trace(fast) -> None:
    kernels = fast(TinyWeights("q4_0"))
    x = rows(1100, 256)
    u = kernels.gate_up(0, x)
    assert np.array_equal(bits(u[1099:]), bits(kernels.gate_up(0, x[1099:])))
    spans = [Span(new_cache(kernels, 16), 0, 500), Span(new_cache(kernels, 16), 0, 600)]
    h, _ = kernels.attn(0, x, spans)
    second, _ = kernels.attn(0, x[500:], [Span(new_cache(kernels, 600), 0, 600)])
    assert np.array_equal(bits(h[500:]), bits(second))


def test_mixed_kinds_of_q_k_v_are_products_of_their_own(fast) -> None:
    weights = TinyWeights("q4_k", kinds={"v": "q6_k", "up": "q5_k", "down": "q6_k"})
    kernels = fast(weights)
    assert weights.names("attn", 0) == ("q", "k", "v")
    x = rows(9, 256)
    h, n = kernels.attn(0, x, [Span(new_cache(kernels, 16), 0, 9)])
    assert _close(h, attn64(weights, 0, x))
    gate, up = n @ weights.values(0, "gate").T, n @ weights.values(0, "up").T
    assert _close(kernels.gate_up(0, n), gate / (1 + np.exp(-gate)) * up)


def test_inputs_at_odd_addresses_and_strides_are_taken(fast) -> None:
    kernels = fast(TinyWeights("q4_1"))
    x = rows(5, 256)
    raw = bytes(3) + x.tobytes()
    unaligned = np.frombuffer(raw, np.float32, count=x.size, offset=3).reshape(x.shape)
    assert not unaligned.flags.aligned
    assert np.array_equal(bits(kernels.gate_up(0, unaligned)), bits(kernels.gate_up(0, x)))
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    assert np.array_equal(bits(kernels.head(strided, 0, 1)), bits(kernels.head(x, 0, 1)))


def test_results_are_the_callers_to_keep(fast) -> None:
    kernels = fast(TinyWeights("q4_1"))
    first = kernels.gate_up(0, rows(3, 256))
    kept = first.copy()
    kernels.gate_up(0, rows(3, 256, seed=9))
    assert np.array_equal(bits(first), bits(kept))
