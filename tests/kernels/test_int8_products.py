"""The set fast-int8: products of 8-bit activations are exact integers, so rows keep their bits in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stations.kernels import Span, make_backend
from stations.kernels.fast.backend import FastBackend, FastKernels
from stations.kernels.fast.helper_choice import HelperChoice
from stations.kernels.fast.numerics import EXPECTED_ID, EXPECTED_INT8_ID
from stations.models.roles import RoleSpan, all_roles, parse_roles

from .tiny import TinyWeights, bits, new_cache, norm64, rows, run_layers, tiny_card
from .weights import KINDS

CODED = [kind for kind in KINDS if kind not in ("f32", "f16", "bf16")]


@pytest.fixture
def int8(compile_cache, units) -> Any:
    """`int8(weights, threads=1, roles="")`: the kernels of a model in memory, every role unless some are named."""
    made: list[FastKernels] = []

    def make(weights: TinyWeights, threads: int = 1, roles: str = "") -> FastKernels:
        layers = weights.card.num_layers
        spans = parse_roles(roles, layers) if roles else all_roles(layers)
        made.append(FastKernels(weights, spans, threads, compile_cache, units, is_int8=True))
        return made[-1]

    yield make
    for kernels in made:
        kernels.close()


def quantised(x: np.ndarray) -> np.ndarray:
    """f32 rows → what their codes stand for, f64: of each block of 32, scale · (code − zero) with 256 codes."""
    blocks = x.reshape(len(x), -1, 32).astype(np.float32)
    low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
    scale = high / np.float32(255) - low / np.float32(255)
    inverse = np.float32(1) / np.where(scale > 0, scale, np.float32(1))
    zero = np.rint(-low * inverse) - 128
    codes = np.clip(np.rint(blocks * inverse[..., None]) + zero[..., None], -128, 127)
    return ((codes - zero[..., None]).astype(np.float64) * scale[..., None]).reshape(x.shape)


def _close(found: np.ndarray, exact: np.ndarray) -> bool:
    return bool(np.abs(found - exact).max() <= 2e-6 * np.abs(exact).max())


@pytest.mark.parametrize("kind", CODED)
def test_products_are_those_of_the_quantised_rows_alone_and_in_any_company(kind, int8) -> None:
    weights = TinyWeights(kind)
    kernels = int8(weights)
    x = rows(33, 256) * np.float32(3)
    alone = np.concatenate([kernels.gate_up(1, row[None]) for row in x])
    for count in (2, 3, 4, 5, 12, 13, 16, 17, 33):
        assert np.array_equal(bits(kernels.gate_up(1, x[:count])), bits(alone[:count])), count
    gate, up = (quantised(x) @ weights.values(1, name).T for name in ("gate", "up"))
    assert _close(alone, gate / (1 + np.exp(-gate)) * up)
    out = kernels.down(1, x, alone)
    assert _close(out, x + quantised(alone) @ weights.values(1, "down").T)
    assert np.array_equal(bits(kernels.down(1, x[7:9], alone[7:9])), bits(out[7:9]))
    logits = kernels.head(x, 0, 1)
    assert np.array_equal(bits(kernels.head(x[30:31], 0, 1)), bits(logits[30:31]))
    assert np.abs(logits - norm64(x, weights.norm("head", 0, "final_norm"), 1e-5) @ weights.values(0, "head").T).max() \
        < 0.02 * np.abs(logits).max()  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_weights_without_codes_keep_the_exact_path(kind, int8, fast) -> None:
    weights = TinyWeights(kind)
    x = rows(9, 256)
    assert np.array_equal(bits(run_layers(int8(weights), x, [9])), bits(run_layers(fast(weights), x, [9])))


def test_codes_and_plain_weights_side_by_side_are_products_of_their_own(int8) -> None:
    weights = TinyWeights("q4_k", kinds={"v": "f16", "up": "f32", "down": "q6_k"})
    kernels = int8(weights)
    assert weights.names("attn", 0) == ("q", "k", "v")
    x = rows(14, 256)
    gate, up = quantised(x) @ weights.values(0, "gate").T, x @ weights.values(0, "up").T
    assert _close(kernels.gate_up(0, x), gate / (1 + np.exp(-gate)) * up)
    whole = run_layers(kernels, x, [14])
    assert np.array_equal(bits(run_layers(kernels, x, [1, 5, 8])), bits(whole))


@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "q6_k"])
def test_any_cut_gives_the_same_bits(kind, int8) -> None:
    weights = TinyWeights(kind, tiny_card(ffn_size=1024, vocab_size=71))
    kernels = int8(weights)
    x = rows(40, 256)
    whole = run_layers(kernels, x, [40])
    for cuts in ([1] * 40, [7] * 5 + [5], [39, 1]):
        assert np.array_equal(bits(run_layers(kernels, x, cuts)), bits(whole))
    by_role = x
    for layer in range(2):
        h, n = kernels.attn(layer, by_role, [Span(new_cache(kernels, 40), 0, 40)])
        by_role = kernels.down(layer, h, kernels.gate_up(layer, n))
    assert np.array_equal(bits(by_role), bits(whole))
    shards = [kernels.head(x[:3], part, 3) for part in range(3)]
    assert np.array_equal(bits(np.concatenate(shards, axis=1)), bits(kernels.head(x[:3], 0, 1)))


@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "q5_k"])
def test_slices_of_the_ffn_add_up_to_down(kind, int8) -> None:
    weights = TinyWeights(kind, tiny_card(ffn_size=1024))
    whole = int8(weights)
    h, n = rows(5, 256), rows(5, 256, seed=4)
    shares = [int8(weights, roles=f"ffn:0-1:{part}/4").ffn(1, n, part, 4) for part in range(4)]
    total = h + ((shares[0] + shares[1]) + (shares[2] + shares[3]))
    assert np.array_equal(bits(total), bits(whole.down(1, h, whole.gate_up(1, n))))


def test_helper_threads_change_no_bit(int8) -> None:
    class EveryCall(HelperChoice):
        def wants_helpers(self, operation: int, rows: int) -> bool:
            super().wants_helpers(operation, rows)
            return True

    weights = TinyWeights("q4_1", tiny_card(hidden_size=512, num_heads=8, ffn_size=1536, vocab_size=2048))
    one, several = int8(weights), int8(weights, 3)
    several.helper_choice = EveryCall()
    x = rows(150, 512)
    for cuts in ([150], [130, *[1] * 20]):
        assert np.array_equal(bits(run_layers(several, x, cuts)), bits(run_layers(one, x, cuts)))
    assert np.array_equal(bits(several.head(x[:37], 0, 1)), bits(one.head(x[:37], 0, 1)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "q6_k"])
def test_nan_and_infinity_show_in_their_row_and_leave_the_others_alone(value, kind, int8) -> None:
    kernels = int8(TinyWeights(kind))
    x = rows(14, 256)
    clean = kernels.gate_up(0, x)
    x[10, 100] = value
    broken = kernels.gate_up(0, x)
    assert not np.isfinite(broken[10]).any()
    assert np.array_equal(bits(np.delete(broken, 10, axis=0)), bits(np.delete(clean, 10, axis=0)))


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-31, 1e30, 3e38])
def test_blocks_of_any_size_are_taken(size, int8) -> None:
    kernels = int8(TinyWeights("q4_0"))
    x = rows(2, 256)
    x[0, 32:64] = np.float32(size)
    x[1] = np.float32(size)
    u = kernels.down(0, np.zeros((2, 256), np.float32), np.repeat(x, 2, axis=1))
    assert np.isfinite(u).all() or size == 3e38
    if size < 1e-30:
        assert not u[1].any()


def test_the_set_is_chosen_by_name_and_has_an_id_of_its_own() -> None:
    chosen = make_backend("fast-int8", TinyWeights("q4_1"), [RoleSpan("attn", 0, 1)], 1)
    other = FastBackend(TinyWeights("q6_k"), [RoleSpan("head")], is_int8=True)
    plain = FastBackend(TinyWeights("f16"), [RoleSpan("head")], is_int8=True)
    assert chosen.name == "fast-int8"
    assert chosen.numerics_id == other.numerics_id == plain.numerics_id == EXPECTED_INT8_ID != EXPECTED_ID


def test_rows_are_nearer_to_the_exact_set_than_a_twentieth(int8, fast) -> None:
    x = rows(24, 256)
    exact, coarse = (run_layers(make(TinyWeights("q4_1")), x, [24]) for make in (fast, int8))
    error = np.sqrt(np.mean((coarse - exact) ** 2)) / np.sqrt(np.mean(exact**2))
    assert 0 < error < 0.05
