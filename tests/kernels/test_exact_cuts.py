"""What is exact by construction: shards of the vocabulary, slices of the ffn, embedding rows, NaN kept in its row."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aeonflow.errors import BadTensorError, UnsupportedError
from stations.kernels import Span, vocab_range
from stations.kernels.fast.backend import FastKernels
from stations.kernels.fast.units import product_unit
from stations.layout import segment_bounds, slice_cols, unpack
from stations.models.roles import parse_roles

from .tiny import TinyWeights, bits, new_cache, rows, tiny_card
from .weights import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_rows_are_the_weights_and_shards_sum_to_them_exactly(kind, fast) -> None:
    weights = TinyWeights(kind)
    kernels = fast(weights)
    ids = np.array([0, 95, 17, 16, 15, 17], np.uint32)
    whole = kernels.embed(ids, 0, 1)
    assert np.array_equal(bits(whole), bits(unpack(weights.matrix("embed", 0, "embedding"))[ids] + np.float32(0)))
    for parts in (2, 5, 8):
        shards = [kernels.embed(ids, part, parts) for part in range(parts)]
        total = shards[0]
        for shard in shards[1:]:
            total = total + shard
        assert np.array_equal(bits(total), bits(whole))


@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "f16", "q6_k"])
@pytest.mark.parametrize("vocab", [96, 71])
def test_head_shards_side_by_side_are_the_whole(kind, vocab, fast) -> None:
    kernels = fast(TinyWeights(kind, tiny_card(vocab_size=vocab)))
    x = rows(3, 256)
    whole = kernels.head(x, 0, 1)
    assert whole.shape == (3, vocab)
    for parts in (2, 3, 8):
        shards = [kernels.head(x, part, parts) for part in range(parts)]
        assert [s.shape[1] for s in shards] == [
            hi - lo for lo, hi in (vocab_range(vocab, p, parts) for p in range(parts))
        ]
        assert np.array_equal(bits(np.concatenate(shards, axis=1)), bits(whole))


def _tile_of_one(x: np.ndarray) -> np.ndarray:
    """What a product reads for one row: the values, then each block's sum in the order of docs/numerics.md."""
    lanes = x.reshape(-1, 2, 16)
    sums = lanes[:, 0] + lanes[:, 1]
    for step in (8, 4, 2, 1):
        sums = sums + np.roll(sums, -step, axis=1)
    return np.concatenate([x, sums[:, 0]])


@pytest.mark.parametrize("kind", KINDS)
def test_down_is_the_fixed_tree_of_eight_slices_then_one_add(kind, fast, units) -> None:
    card = tiny_card(ffn_size=2048)
    weights = TinyWeights(kind, card)
    kernels = fast(weights)
    product = units.function(product_unit(kind))
    h, u = rows(1, 256), rows(1, 2048, seed=3)
    matrix = weights.part(0, "down")
    bounds = segment_bounds(matrix.num_blocks)
    sums = []
    for lo, hi in itertools.pairwise(bounds):
        part = slice_cols(matrix, lo * 32, hi * 32)
        tile = _tile_of_one(u[0, lo * 32 : hi * 32])
        out = np.zeros(256, np.float32)
        assert not product(part.data.ctypes.data, hi - lo, 0, 16, tile.ctypes.data, 1, out.ctypes.data, 1024, 1, 0, 1)
        sums.append(out)
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    assert np.array_equal(bits(h[0] + sums[0]), bits(kernels.down(0, h, u)[0]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["q4_1", "f32"])
def test_nan_and_infinity_show_in_their_session_and_leave_the_others_alone(value, kind, fast) -> None:
    kernels = fast(TinyWeights(kind))

    def batch(x: np.ndarray) -> np.ndarray:
        caches = [[new_cache(kernels, 8) for _ in range(3)] for _ in range(2)]
        spans = [[Span(c, 0, n) for c, n in zip(layer, (6, 5, 3), strict=True)] for layer in caches]
        return kernels.block(0, 1, x, spans)

    x = rows(14, 256)
    clean = batch(x)
    x[10, 100] = value
    broken = batch(x)
    others = [*range(6), *range(11, 14)]
    assert np.array_equal(bits(broken[others]), bits(clean[others]))
    assert not np.isfinite(broken[10]).any()
    for out in (kernels.gate_up(0, x), kernels.head(x, 0, 1)):
        assert not np.isfinite(out[10]).any()
        assert np.isfinite(np.delete(out, 10, axis=0)).all()


def test_no_rows_give_no_rows(fast) -> None:
    kernels = fast(TinyWeights("q4_1"))
    none = np.zeros((0, 256), np.float32)
    assert kernels.gate_up(0, none).shape == (0, 512)
    assert kernels.head(none, 0, 1).shape == (0, 96)
    assert kernels.embed(np.zeros(0, np.uint32), 0, 1).shape == (0, 256)


def test_wrong_shapes_and_roles_are_refused_with_the_numbers(fast, compile_cache, units) -> None:
    kernels = fast(TinyWeights("q4_1"))
    with pytest.raises(BadTensorError, match=r"rows of 256 values are expected, found shape \[2, 255\]"):
        kernels.gate_up(0, rows(2, 255))
    with pytest.raises(BadTensorError, match="3 rows, but the spans of a layer hold 2"):
        kernels.attn(0, rows(3, 256), [Span(new_cache(kernels, 8), 0, 2)])
    with pytest.raises(BadTensorError, match="2 rows of h, 3 of u"):
        kernels.down(0, rows(2, 256), rows(3, 512))
    few = FastKernels(TinyWeights("q4_1"), parse_roles("gate_up:1", 2), 1, compile_cache, units)
    with pytest.raises(UnsupportedError, match="not given gate_up of layer 0; they have gate_up:1"):
        few.gate_up(0, rows(1, 256))
    with pytest.raises(UnsupportedError, match="not given attn of layer 1"):
        few.attn(1, rows(1, 256), [Span(new_cache(few, 8), 0, 1)])
