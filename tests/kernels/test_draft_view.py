"""What a draft sees of a layer: canonical rows below its position, then rows of drafts; and that it changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from stations.kernels import Span
from stations.kernels.reference import ReferenceBackend
from stations.kv import LayerKvCache
from stations.kv.draft_view import DraftRow, DraftView
from stations.kv.errors import KvFormError, RollbackError
from stations.kv.eviction import Born
from stations.models.roles import all_roles

from .tiny import TinyWeights, bits, rows

HEADS, DIM = 2, 64


@pytest.fixture(params=["fast", "reference"])
def kernels(request, fast):
    weights = TinyWeights("q4_1")
    if request.param == "fast":
        return fast(weights)
    return ReferenceBackend(weights, all_roles(2), row_by_row=True)


def filled(kernels, mode: str, count: int) -> LayerKvCache:
    """A cache of `count` rows, one pass a row, as a decode appends them."""
    cache = LayerKvCache(HEADS, DIM, mode)
    x = rows(count, 256, seed=5)
    for i in range(count):
        kernels.attn_delta(0, x[i : i + 1], [Span(cache, i, 1)])
    return cache


def stored(cache: LayerKvCache) -> list[bytes]:
    return [bits(read(head)).tobytes() for head in range(HEADS) for read in (cache.head_keys, cache.head_values)]


@pytest.mark.parametrize("mode", ["f32", "f16", "q4"])
@pytest.mark.parametrize(("have", "position"), [(5, 5), (9, 5), (230, 230), (236, 231)])
def test_a_view_gives_the_attention_of_a_cache_cut_to_its_position(mode, have, position, kernels) -> None:
    cache, cut = filled(kernels, mode, have), filled(kernels, mode, have)
    cut.truncate_to(position)
    x, before = rows(1, 256, seed=8), stored(cache)
    view = DraftView(HEADS, DIM, mode)
    view.show(cache, position, [])
    a = kernels.attn_delta(0, x, [Span(view, position, 1)])
    assert np.array_equal(bits(a), bits(kernels.attn_delta(0, x, [Span(cut, position, 1)])))
    assert stored(cache) == before
    assert cache.pos_len == have


def test_beside_8_bit_rows_a_draft_reads_its_own_row_exact(kernels) -> None:
    cache, cut = filled(kernels, "q8", 290), filled(kernels, "q8", 290)
    x, before, view = rows(1, 256, seed=8), stored(cache), DraftView(HEADS, DIM, "q8")
    view.show(cache, 290, [])
    a = kernels.attn_delta(0, x, [Span(view, 290, 1)])
    np.testing.assert_allclose(a, kernels.attn_delta(0, x, [Span(cut, 290, 1)]), atol=0.02)
    assert stored(cache) == before


def test_rows_of_earlier_drafts_are_read_behind_the_canonical_ones(kernels) -> None:
    cache, other = filled(kernels, "f32", 20), filled(kernels, "f32", 20)
    view, held = DraftView(HEADS, DIM), []
    for i in range(3):
        x = rows(1, 256, seed=30 + i)
        view.show(cache, 20, held)
        a = kernels.attn_delta(0, x, [Span(view, 20 + i, 1)])
        assert np.array_equal(bits(a), bits(kernels.attn_delta(0, x, [Span(other, 20 + i, 1)])))
        held.append(view.newest())
    for head in range(HEADS):
        assert np.array_equal(np.concatenate([row.k for row in held])[:, head], other.head_keys(head)[20:])
        assert np.array_equal(np.concatenate([row.v for row in held])[:, head], other.head_values(head)[20:])
    assert cache.pos_len == 20


def test_a_layer_without_rows_yet_is_read_as_empty(kernels) -> None:
    view, x = DraftView(HEADS, DIM), rows(1, 256)
    for cache in (None, LayerKvCache(HEADS, DIM)):
        view.show(cache, 0, [])
        a = kernels.attn_delta(0, x, [Span(view, 0, 1)])
        assert np.array_equal(bits(a), bits(kernels.attn_delta(0, x, [Span(LayerKvCache(HEADS, DIM), 0, 1)])))


def test_mass_is_not_kept_and_windows_are(kernels) -> None:
    caches = [filled(kernels, "f32", 30) for _ in range(2)]
    for cache in caches:
        cache.reading.set(window=8, keeps_mass=True)
    x, view = rows(1, 256, seed=3), DraftView(HEADS, DIM)
    view.show(caches[0], 30, [])
    a = kernels.attn_delta(0, x, [Span(view, 30, 1)])
    assert np.array_equal(bits(a), bits(kernels.attn_delta(0, x, [Span(caches[1], 30, 1)])))
    caches[0].settle(31)
    assert not caches[0].importance.any()


def test_what_cannot_be_read_row_by_row_is_refused() -> None:
    view, k = DraftView(HEADS, DIM), rows(40, HEADS * DIM)
    sealed = LayerKvCache(HEADS, DIM)
    sealed.o1_begin(4, 8, 2, seal_at=40)
    with pytest.raises(KvFormError, match="none to read"):
        view.show(sealed, 0, [])
    dead = LayerKvCache(HEADS, DIM)
    dead.append(k, k, [True, False])
    with pytest.raises(KvFormError, match="none to read"):
        view.show(dead, 40, [])
    evicted = LayerKvCache(HEADS, DIM)
    evicted.append(k, k)
    evicted.evict(20, Born())
    view.show(evicted, 40, [])
    assert view.seq_len == 20
    with pytest.raises(RollbackError, match="rows below 39 cannot be told apart"):
        view.show(evicted, 39, [])


def test_a_view_refuses_to_change_what_it_shares() -> None:
    cache, view = LayerKvCache(HEADS, DIM), DraftView(HEADS, DIM)
    k = rows(4, HEADS * DIM)
    cache.append(k, k)
    view.show(cache, 4, [DraftRow(*(rows(1, HEADS * DIM).reshape(1, HEADS, DIM),) * 2)])
    with pytest.raises(KvFormError, match="belong to the layer"):
        view.truncate_to(2)
    assert (view.seq_len, cache.seq_len) == (5, 4)
