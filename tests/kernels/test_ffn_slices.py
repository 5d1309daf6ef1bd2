"""Slices of the ffn: 2, 4 or 8 of them, added by the upper part of down's tree and to h, have the bits of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from aeonflow.errors import UnsupportedError
from stations.errors import LayoutError
from stations.kernels.fast.backend import FastKernels
from stations.kernels.reference import ReferenceBackend
from stations.layout import ffn_slice
from stations.models.roles import parse_roles

from .tiny import TinyWeights, bits, rows, tiny_card
from .weights import KINDS


def joined(h: np.ndarray, sums: list[np.ndarray]) -> np.ndarray:
    """h + the tree, as whoever takes the next layer's input adds it."""
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return h + sums[0]


@pytest.fixture
def only(compile_cache, units):
    """`only(weights, roles)`: fast kernels of some roles."""
    made = []

    def make(weights: TinyWeights, roles: str) -> FastKernels:
        made.append(FastKernels(weights, parse_roles(roles, 2), 1, compile_cache, units))
        return made[-1]

    yield make
    for kernels in made:
        kernels.close()


@pytest.mark.parametrize("kind", KINDS)
def test_slices_of_every_weight_type_add_up_to_the_bits_of_gate_up_and_down(kind, fast, only) -> None:
    weights = TinyWeights(kind)  # K-quants of 512 columns: slices end inside super-blocks
    whole = fast(weights)
    h, n = rows(23, 256, seed=1), rows(23, 256)
    expected = whole.down(1, h, whole.gate_up(1, n))
    for parts in (2, 4, 8):
        backends = [only(weights, f"ffn:1:{part}/{parts}") for part in range(parts)]
        for lo, hi in ((0, 23), (4, 5), (5, 12)):
            sums = [backend.ffn(1, n[lo:hi], part, parts) for part, backend in enumerate(backends)]
            assert np.array_equal(bits(joined(h[lo:hi], sums)), bits(expected[lo:hi])), (parts, lo, hi)


@pytest.mark.parametrize(
    ("ffn", "kind", "most"), [(1000, "f32", 8), (176, "f16", 4), (96, "q8_0", 2), (416, "q4_1", 8)]
)
def test_slices_of_unequal_width_are_exact_too_and_too_many_are_refused(ffn, kind, most, fast, only) -> None:
    weights = TinyWeights(kind, tiny_card(ffn_size=ffn))
    whole = fast(weights)
    h, n = rows(9, 256, seed=1), rows(9, 256)
    expected = whole.down(0, h, whole.gate_up(0, n))
    for parts in (2, 4, 8):
        roles = ",".join(f"ffn:0-1:{part}/{parts}" for part in range(parts))
        if parts > most:
            with pytest.raises(
                LayoutError, match=f"{parts} ffn slices: {ffn} columns are {-(-ffn // 32)} blocks of 32"
            ):
                only(weights, roles)
            continue
        kernels = only(weights, roles)
        sums = [kernels.ffn(0, n, part, parts) for part in range(parts)]
        assert np.array_equal(bits(joined(h, sums)), bits(expected))


def test_slices_of_different_weight_types_are_exact(fast, only) -> None:
    weights = TinyWeights("q4_k", kinds={"up": "q5_k", "down": "q6_k"})
    whole, h, n = fast(weights), rows(2, 256, seed=1), rows(2, 256)
    kernels = only(weights, "ffn:0:0/2,ffn:0:1/2")
    sums = [kernels.ffn(0, n, part, 2) for part in range(2)]
    assert np.array_equal(bits(joined(h, sums)), bits(whole.down(0, h, whole.gate_up(0, n))))


def test_batches_beyond_the_work_areas_are_cut_and_no_rows_give_no_rows(only) -> None:
    kernels = only(TinyWeights("q4_0"), "ffn:0:3/4")
    n = rows(1100, 256)
    assert np.array_equal(bits(kernels.ffn(0, n, 3, 4)[1099:]), bits(kernels.ffn(0, n[1099:], 3, 4)))
    assert kernels.ffn(0, n[:0], 3, 4).shape == (0, 256)


def test_a_slice_reads_its_weights_where_they_lie(only) -> None:
    weights = TinyWeights("q4_1")
    kernels = only(weights, "ffn:0:1/2")
    down, up = weights.part(0, "down").data, kernels.records.slices[0, 1, 2]
    assert any(kept is down for kept in kernels.records._keep)
    assert (up.width, up.first_segment, up.end_segment) == (256, 4, 8)


def test_what_a_backend_was_not_given_is_refused(only) -> None:
    kernels = only(TinyWeights("q4_1"), "ffn:0:1/2")
    with pytest.raises(UnsupportedError, match="ffn slice 0/2 of layer 0: 1/2 of layer 0"):
        kernels.ffn(0, rows(1, 256), 0, 2)
    with pytest.raises(UnsupportedError, match="not given gate_up of layer 0"):
        kernels.gate_up(0, rows(1, 256))


def test_columns_of_slices_are_whole_segments() -> None:
    assert [ffn_slice(1536, part, 2) for part in range(2)] == [(0, 768), (768, 1536)]
    assert [ffn_slice(1000, part, 4) for part in range(4)] == [(0, 256), (256, 512), (512, 768), (768, 1000)]
    assert [ffn_slice(128, part, 4) for part in range(4)] == [(0, 32), (32, 64), (64, 96), (96, 128)]
    for part, parts in ((0, 1), (0, 3), (2, 2), (0, 16)):
        with pytest.raises(LayoutError, match="2, 4 or 8 slices are exact"):
            ffn_slice(1536, part, parts)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_reference_adds_the_same_tree(parts) -> None:
    weights = TinyWeights("q4_1")
    roles = "block:0," + ",".join(f"ffn:0:{part}/{parts}" for part in range(parts))
    plain = ReferenceBackend(weights, parse_roles(roles, 2), row_by_row=True)
    h, n = rows(5, 256, seed=1), rows(5, 256)
    sums = [plain.ffn(0, n, part, parts) for part in range(parts)]
    expected = plain.down(0, h, plain.gate_up(0, n))
    assert np.array_equal(bits(joined(h, sums)), bits(expected))
