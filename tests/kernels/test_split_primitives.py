"""Attention and DOWN without their residuals: added to it afterwards they have the bits of the whole role."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow.errors import UnsupportedError
from stations.kernels import Span
from stations.kernels.base import add_rows
from stations.kernels.fast.backend import FastKernels
from stations.kernels.reference import ReferenceBackend
from stations.models.roles import all_roles, parse_roles

from .tiny import TinyWeights, bits, new_cache, rows, tiny_card
from .weights import KINDS


@pytest.fixture(params=["fast", "fast-int8", "reference"])
def make(request, fast, compile_cache, units):
    """`make(weights)`: every role in one of the kernel sets."""
    if request.param == "fast":
        return fast
    if request.param == "fast-int8":
        return lambda weights: FastKernels(weights, all_roles(2), 1, compile_cache, units, is_int8=True)
    return lambda weights: ReferenceBackend(weights, all_roles(2), row_by_row=True)


@pytest.mark.parametrize("kind", ["q4_1", "q6_k", "f16"])
@pytest.mark.parametrize("cuts", [(1,), (7, 1, 12), (23, 1)])
def test_attention_added_to_its_input_and_normed_is_attn(kind, cuts, make) -> None:
    kernels = make(TinyWeights(kind))
    whole, split = new_cache(kernels, 64), new_cache(kernels, 64)
    first = 0
    for count in cuts:
        x = rows(count, 256, seed=first)
        h, n = kernels.attn(1, x, [Span(whole, first, count)])
        a = kernels.attn_delta(1, x, [Span(split, first, count)])
        h2, n2 = kernels.add_norm(1, x, a)
        assert np.array_equal(bits(h2), bits(h))
        assert np.array_equal(bits(n2), bits(n))
        assert np.array_equal(bits(kernels.norm2(1, h)), bits(n))
        first += count
    assert split.pos_len == whole.pos_len == sum(cuts)
    for head in range(2):
        assert np.array_equal(bits(split.head_keys(head)), bits(whole.head_keys(head)))


@pytest.mark.parametrize("kind", KINDS)
def test_down_is_h_plus_its_product(kind, fast) -> None:
    kernels = fast(TinyWeights(kind))
    h, u = rows(23, 256, seed=1), rows(23, 512)
    expected = kernels.down(1, h, u)
    for lo, hi in ((0, 23), (4, 5), (5, 12)):
        assert np.array_equal(bits(add_rows(h[lo:hi], kernels.down_delta(1, u[lo:hi]))), bits(expected[lo:hi]))


def test_down_of_every_kernel_set_is_h_plus_its_product(make) -> None:
    kernels = make(TinyWeights("q4_1"))
    h, u = rows(5, 256, seed=1), rows(5, 512)
    assert np.array_equal(bits(add_rows(h, kernels.down_delta(0, u))), bits(kernels.down(0, h, u)))


def test_widths_that_are_no_multiple_of_a_vector_are_split_exactly_too(fast) -> None:
    kernels = fast(
        TinyWeights("f32", tiny_card(hidden_size=72, num_heads=3, num_kv_heads=1, head_dim=24, ffn_size=200))
    )
    x, u = rows(5, 72), rows(5, 200)
    h, n = kernels.attn(0, x, [Span(new_cache(kernels, 8), 0, 5)])
    h2, n2 = kernels.add_norm(0, x, kernels.attn_delta(0, x, [Span(new_cache(kernels, 8), 0, 5)]))
    assert np.array_equal(bits(h2), bits(h))
    assert np.array_equal(bits(n2), bits(n))
    assert np.array_equal(bits(add_rows(h, kernels.down_delta(0, u))), bits(kernels.down(0, h, u)))


def test_rows_of_several_sequences_share_a_call_without_changing_a_bit(make) -> None:
    kernels = make(TinyWeights("q4_1"))
    together, alone = ([new_cache(kernels, 16) for _ in range(3)] for _ in range(2))
    counts, x = (3, 1, 4), rows(8, 256)
    a = kernels.attn_delta(0, x, [Span(c, 0, n) for c, n in zip(together, counts, strict=True)])
    at = 0
    for cache, count in zip(alone, counts, strict=True):
        part = x[at : at + count]
        assert np.array_equal(bits(kernels.attn_delta(0, part, [Span(cache, 0, count)])), bits(a[at : at + count]))
        at += count


def test_a_layer_sealed_at_o1_gives_attention_without_the_residual_too(make) -> None:
    kernels = make(TinyWeights("q4_1"))
    caches = [new_cache(kernels, 64) for _ in range(2)]
    x = rows(44, 256)
    for cache in caches:
        cache.o1_begin(4, 8, 2, seal_at=40)
        kernels.attn(0, x[:40], [Span(cache, 0, 40)])
        assert cache.o1_seal(kernels.card.num_heads), cache.o1_error
    h, _ = kernels.attn(0, x[40:], [Span(caches[0], 40, 4)])
    a = kernels.attn_delta(0, x[40:], [Span(caches[1], 40, 4)])
    assert np.array_equal(bits(add_rows(x[40:], a)), bits(h))


def test_batches_beyond_the_work_areas_are_cut_and_no_rows_give_no_rows(fast) -> None:
    kernels = fast(TinyWeights("q4_0"))
    u, x = rows(1100, 512), rows(1100, 256)
    assert np.array_equal(bits(kernels.down_delta(0, u)[1099:]), bits(kernels.down_delta(0, u[1099:])))
    assert np.array_equal(bits(kernels.norm2(0, x)[1099:]), bits(kernels.norm2(0, x[1099:])))
    assert kernels.down_delta(0, u[:0]).shape == (0, 256)
    cut, whole = new_cache(kernels, 1100), new_cache(kernels, 1100)
    a = kernels.attn_delta(0, x[:520], [Span(cut, 0, 520)])
    first = kernels.attn_delta(0, x[:512], [Span(whole, 0, 512)])
    assert np.array_equal(bits(a[:512]), bits(first))


def test_norm2_comes_with_attn_or_gate_up_and_other_roles_are_refused(compile_cache, units) -> None:
    weights, x = TinyWeights("q4_1"), rows(2, 256)
    made = [FastKernels(weights, parse_roles(r, 2), 1, compile_cache, units) for r in ("attn:0", "gate_up:0", "down:0")]
    try:
        assert np.array_equal(bits(made[0].norm2(0, x)), bits(made[1].norm2(0, x)))
        with pytest.raises(UnsupportedError, match="not given attn of layer 0"):
            made[2].norm2(0, x)
        with pytest.raises(UnsupportedError, match="not given down of layer 0"):
            made[0].down_delta(0, rows(2, 512))
        with pytest.raises(UnsupportedError, match="not given attn of layer 0"):
            made[1].attn_delta(0, x, [])
    finally:
        for kernels in made:
            kernels.close()
