"""The plain kernels: close to f64, the same model as the fast ones, and row by row where that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow.errors import UnsupportedError
from stations.kernels import Span, make_backend
from stations.kernels.reference import ReferenceBackend
from stations.layout import unpack
from stations.models.card import Rope
from stations.models.roles import all_roles, parse_roles

from .tiny import TinyWeights, attn64, bits, new_cache, rows, run_layers, tiny_card

CLOSE = 1e-5  # of a result's largest value: f32 sums in BLAS's order


def test_roles_are_close_to_f64() -> None:
    card = tiny_card(hidden_size=96, num_heads=3, num_kv_heads=1, head_dim=32, rope=Rope(theta=100.0, dim=24))
    weights = TinyWeights("f16", card)
    backend = ReferenceBackend(weights, all_roles(2))
    x = rows(11, 96)
    h, n = backend.attn(0, x, [Span(new_cache(backend, 16), 0, 11)])
    exact = attn64(weights, 0, x)
    assert np.abs(h - exact).max() < CLOSE * np.abs(exact).max()
    gate, up = n @ weights.values(0, "gate").T, n @ weights.values(0, "up").T
    u = backend.gate_up(0, n)
    assert np.abs(u - gate / (1 + np.exp(-gate)) * up).max() < CLOSE * np.abs(u).max()
    down = h + u @ weights.values(0, "down").T
    assert np.abs(backend.down(0, h, u) - down).max() < CLOSE * np.abs(down).max()


@pytest.mark.parametrize("kind", ["q4_1", "q6_k", "bf16"])
def test_both_kernel_sets_compute_the_same_model(kind, fast) -> None:
    weights = TinyWeights(kind)
    x = rows(20, 256)
    plain = run_layers(ReferenceBackend(weights, all_roles(2)), x, [7, 13])
    quick = run_layers(fast(weights), x, [20])
    assert np.abs(plain - quick).max() < CLOSE * np.abs(plain).max()


def test_row_by_row_a_row_does_not_depend_on_its_company() -> None:
    backend = ReferenceBackend(TinyWeights("q4_1"), all_roles(2), row_by_row=True)
    x = rows(9, 256)
    whole = run_layers(backend, x, [9])
    assert np.array_equal(bits(run_layers(backend, x, [1, 5, 3])), bits(whole))
    assert np.array_equal(bits(backend.head(whole[4:5], 0, 1)), bits(backend.head(whole, 0, 1)[4:5]))
    assert backend.numerics_id != ReferenceBackend(TinyWeights("q4_1"), all_roles(2)).numerics_id


def test_embedding_and_head_shards_make_the_whole() -> None:
    weights = TinyWeights("q8_0")
    backend = ReferenceBackend(weights, all_roles(2))
    ids = np.array([5, 95, 40], np.uint32)
    shards = [backend.embed(ids, part, 3) for part in range(3)]
    assert np.array_equal(sum(shards), unpack(weights.matrix("embed", 0, "embedding"))[ids])
    x = rows(2, 256)
    parts = np.concatenate([backend.head(x, part, 4) for part in range(4)], axis=1)
    assert np.allclose(parts, backend.head(x, 0, 1), rtol=1e-5, atol=1e-5)


def test_roles_and_names_that_are_not_there_are_refused_by_name() -> None:
    backend = make_backend("reference", TinyWeights("q4_1"), parse_roles("down:1", 2))
    with pytest.raises(UnsupportedError, match="not given down of layer 0; they have down:1"):
        backend.down(0, rows(1, 256), rows(1, 512))
    with pytest.raises(UnsupportedError, match="kernels 'blas': known are fast, fast-int8, reference"):
        make_backend("blas", TinyWeights("q4_1"), all_roles(2))
