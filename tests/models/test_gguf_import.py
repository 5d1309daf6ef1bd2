from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from stations.layout import unpack
from stations.models import CorruptModelError, ModelError, ModelFolder, UnsupportedModelError
from stations.models.build import build_folder
from stations.models.card import Attention
from stations.models.gguf_model import GgufCheckpoint

from .gguf_files import ALL_TYPES, K_GEOMETRY, Geometry, random_weights, write_gguf

TINY = Geometry()


def import_gguf(path: Path) -> ModelFolder:
    with closing(GgufCheckpoint(path, "tiny")) as checkpoint:
        return build_folder(checkpoint, path.parent / "imported")


def dequantized(raw: np.ndarray, weight_type: str) -> np.ndarray:
    return quants.dequantize(raw, GGMLQuantizationType[weight_type]).astype(np.float32)


def stored_matrices(folder: ModelFolder) -> dict[str, np.ndarray]:
    """Every matrix of the folder under its GGUF name, stacked ones taken apart by the card's row counts."""
    card = folder.card
    found = {
        "token_embd": unpack(folder.matrix("embed", 0, "embedding")),
        "output": unpack(folder.matrix("head", 0, "head")),
    }
    q, kv = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
    for layer in range(card.num_layers):
        for role, stacked, parts in (
            ("attn", "qkv", {"q": ("attn_q", q), "k": ("attn_k", kv), "v": ("attn_v", kv)}),
            ("gate_up", "gate_up", {"gate": ("ffn_gate", card.ffn_size), "up": ("ffn_up", card.ffn_size)}),
        ):
            start = 0
            whole = unpack(folder.matrix(role, layer, stacked)) if stacked in folder.names(role, layer) else None
            for part, (name, rows) in parts.items():
                own = unpack(folder.matrix(role, layer, part)) if whole is None else whole[start : start + rows]
                found[f"blk.{layer}.{name}"] = own
                start += rows
            assert whole is None or start == len(whole)
        found[f"blk.{layer}.attn_output"] = unpack(folder.matrix("attn", layer, "output"))
        found[f"blk.{layer}.ffn_down"] = unpack(folder.matrix("down", layer, "down"))
    return found


@pytest.mark.parametrize("weight_type", ALL_TYPES)
def test_every_weight_type_keeps_every_bit_of_ggufs_own_dequantisation(weight_type: str, tmp_path: Path) -> None:
    geometry = K_GEOMETRY if weight_type.endswith("_K") else TINY
    raw = write_gguf(tmp_path / "m.gguf", geometry, random_weights(geometry, tied=False), types=weight_type)
    found = stored_matrices(import_gguf(tmp_path / "m.gguf"))
    for name, matrix in found.items():
        expected = dequantized(raw[name], weight_type)
        assert matrix.shape == expected.shape, name
        assert np.array_equal(matrix.view(np.uint32), expected.view(np.uint32)), name


def test_norms_of_a_layer_are_in_every_file_that_needs_them(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    write_gguf(tmp_path / "m.gguf", TINY, weights)
    folder = import_gguf(tmp_path / "m.gguf")
    for layer in range(TINY.layers):
        assert np.array_equal(folder.norm("attn", layer, "norm1"), weights[f"blk.{layer}.attn_norm"])
        assert np.array_equal(folder.norm("attn", layer, "norm2"), weights[f"blk.{layer}.ffn_norm"])
        assert np.array_equal(folder.norm("gate_up", layer, "norm2"), weights[f"blk.{layer}.ffn_norm"])
    assert np.array_equal(folder.norm("head", 0, "final_norm"), weights["output_norm"])


def test_parts_of_different_types_are_stored_apart_and_equal_ones_together(tmp_path: Path) -> None:
    types = {
        "attn_q": "Q4_0",
        "attn_k": "Q4_0",
        "attn_v": "Q8_0",
        "ffn_gate": "Q4_0",
        "ffn_up": "Q5_0",
        "ffn_down": "F16",
    }
    raw = write_gguf(tmp_path / "m.gguf", TINY, random_weights(TINY), types=types)
    folder = import_gguf(tmp_path / "m.gguf")
    assert folder.names("attn", 0) == ("norm1", "norm2", "q", "k", "v", "output")
    assert folder.names("gate_up", 0) == ("norm2", "gate", "up")
    assert [folder.matrix("attn", 1, n).kind for n in ("q", "k", "v", "output")] == ["q4_0", "q4_0", "q8_0", "f32"]
    found = stored_matrices(folder)
    for name in ("attn_q", "attn_v", "ffn_up", "ffn_down"):
        assert np.array_equal(found[f"blk.1.{name}"], dequantized(raw[f"blk.1.{name}"], types[name]))


def test_a_tied_head_is_the_embedding_and_an_untied_one_is_its_own(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tied.gguf", TINY, random_weights(TINY, tied=True))
    write_gguf(tmp_path / "untied.gguf", TINY, random_weights(TINY, tied=False))
    tied = import_gguf(tmp_path / "tied.gguf")
    assert tied.card.tied_embeddings
    assert tied.names("head", 0) == ("final_norm",)
    assert np.array_equal(tied.matrix("head", 0, "head").data, tied.matrix("embed", 0, "embedding").data)
    untied = import_gguf(tmp_path / "untied.gguf")
    assert not untied.card.tied_embeddings
    assert not np.array_equal(untied.matrix("head", 0, "head").data, untied.matrix("embed", 0, "embedding").data)


def test_the_card_says_what_the_metadata_says(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, TINY.head_dim // 2, dtype=np.float32)
    weights = {**random_weights(TINY), "rope_freqs": factors}
    metadata = {
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.ggml.eot_token_id": 2,
        "llama.rope.dimension_count": 16,
    }
    write_gguf(tmp_path / "m.gguf", TINY, weights, metadata=metadata)
    card = import_gguf(tmp_path / "m.gguf").card
    assert (card.num_layers, card.hidden_size, card.num_heads, card.num_kv_heads, card.head_dim) == (2, 64, 4, 2, 16)
    assert (card.ffn_size, card.vocab_size, card.context_length) == (96, 320, 128)
    assert card.rope.theta == 500_000.0
    assert card.rope.dim == 16
    assert card.rope.factors == tuple(map(float, factors))
    assert card.chat_template == "{{ messages }}"
    assert card.bos_id == 1
    assert card.eos_ids == (0, 2)
    assert card.add_bos  # llama-bpe puts it, unless the file says otherwise


def test_end_tokens_are_the_union_of_all_that_the_file_names(tmp_path: Path) -> None:
    """<|eot_id|> ends a turn by its name alone, and an explicit add_bos_token rules."""
    write_gguf(tmp_path / "m.gguf", TINY, random_weights(TINY), metadata={"tokenizer.ggml.add_bos_token": False})
    card = import_gguf(tmp_path / "m.gguf").card
    assert card.eos_ids == (0, 2)
    assert not card.add_bos


def test_declared_windows_softcap_scale_and_sinks_reach_the_card(tmp_path: Path) -> None:
    sinks = [np.arange(4, dtype=np.float32) + layer for layer in range(2)]
    weights = {**random_weights(TINY), **{f"blk.{layer}.attn_sinks": sinks[layer] for layer in range(2)}}
    metadata = {
        "llama.attention.sliding_window": 24,
        "llama.attention.sliding_window_pattern": [True, False],
        "llama.attn_logit_softcapping": 50.0,
        "llama.attention.scale": 0.125,
    }
    write_gguf(tmp_path / "m.gguf", TINY, weights, metadata=metadata)
    model = import_gguf(tmp_path / "m.gguf")
    assert model.card.attention == Attention(windows=(24, 0), softcap=50.0, scale=0.125, has_sinks=True)
    for layer in range(2):
        assert np.array_equal(model.norm("attn", layer, "sinks"), sinks[layer])


@pytest.mark.parametrize(("pattern", "windows"), [(None, (24, 24)), (0, (24, 24)), (2, (24, 0)), (1, ())])
def test_a_pattern_of_n_says_that_every_nth_layer_sees_all(
    pattern: int | None, windows: tuple[int, ...], tmp_path: Path
) -> None:
    metadata = {"llama.attention.sliding_window": 24}
    if pattern is not None:
        metadata["llama.attention.sliding_window_pattern"] = pattern
    write_gguf(tmp_path / "m.gguf", TINY, random_weights(TINY), metadata=metadata)
    assert import_gguf(tmp_path / "m.gguf").card.attention == Attention(windows=windows)


def test_a_model_without_any_of_it_keeps_the_fingerprint_that_it_had(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", TINY, random_weights(TINY), metadata={"llama.attention.sliding_window": 0})
    model = import_gguf(tmp_path / "m.gguf")
    path = model.path / "card.json"
    card = json.loads(path.read_text())
    del card["attention"]
    path.write_text(json.dumps(card))
    assert ModelFolder.open(model.path).card == model.card


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"architecture": "qwen2"}, "'qwen2'; supported is 'llama'"),
    ({"pre": "kimi-k2"}, "pre-tokenizer 'kimi-k2' is not supported; supported are llama3"),
    ({"metadata": {"llama.expert_count": 8}}, "llama.expert_count = 8"),
    ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "llama.rope.scaling.type = 'yarn'"),
    ({"metadata": {"llama.attention.sliding_window": "all"}}, "llama.attention.sliding_window is 'all'"),
    (
        {"metadata": {"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": [True] * 3}},
        "which layers slide is said of 3, the model has 2",
    ),
    ({"metadata": {"llama.attn_logit_softcapping": -1.0}}, "attn_logit_softcapping is -1.0"),
    ({"metadata": {"llama.final_logit_softcapping": 30.0}}, "llama.final_logit_softcapping = 30.0"),
    ({"metadata": {"llama.attention.causal": False}}, "llama.attention.causal = False"),
    ({"metadata": {"llama.some_new_thing": 1}}, "llama.some_new_thing = 1"),
    ({"metadata": {"llama.attention.value_length": 8}}, "keys of 16 and values of 8"),
    ({"metadata": {"split.count": 3}}, "one of 3 parts"),
    ({"metadata": {"split.count": "all"}}, "one of all parts"),
    ({"metadata": {"llama.attention.head_count_kv": [[2], [3]]}}, "head_count_kv is [[2], [3]]"),
    ({"metadata": {"tokenizer.ggml.token_type": [[3]] * 320}}, "known are 1 to 6"),
    ({"metadata": {"llama.block_count": 2_000_000_000}}, "2,000,000,000 layers; at most 1,000 are supported"),
    ({"metadata": {"tokenizer.ggml.add_eos_token": True}}, "add_eos_token"),
]


@pytest.mark.parametrize(("options", "message"), REFUSALS, ids=[m for _, m in REFUSALS])
def test_what_would_be_ignored_is_refused_by_name(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", TINY, random_weights(TINY), **options)
    with pytest.raises(UnsupportedModelError) as caught:
        import_gguf(tmp_path / "m.gguf")
    assert message in str(caught.value)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("name", ["blk.0.attn_q_bias", "blk.1.ffn_gate_inp", "extra"])
def test_unknown_tensors_are_refused_by_name(name: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", TINY, {**random_weights(TINY), name: np.ones(8, np.float32)})
    with pytest.raises(UnsupportedModelError, match=f"first '{name}.weight'"):
        import_gguf(tmp_path / "m.gguf")


def test_missing_and_misshapen_tensors_are_refused_by_name(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    write_gguf(tmp_path / "m.gguf", TINY, {k: v for k, v in weights.items() if k != "blk.1.ffn_up"})
    with pytest.raises(UnsupportedModelError, match=r"missing, first 'blk.1.ffn_up.weight'"):
        import_gguf(tmp_path / "m.gguf")
    write_gguf(tmp_path / "m.gguf", TINY, {**weights, "blk.0.attn_k": weights["blk.0.attn_k"][:16]})
    with pytest.raises(UnsupportedModelError, match=r"blk.0.attn_k.weight is 16x64, the model's geometry needs 32x64"):
        import_gguf(tmp_path / "m.gguf")


def test_foreign_weight_types_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    raw = write_gguf(path, K_GEOMETRY, random_weights(K_GEOMETRY), types={"ffn_down": "Q4_K"})
    data = path.read_bytes()
    at = data.index(b"blk.0.ffn_down.weight") + len("blk.0.ffn_down.weight") + 4 + 16  # after the dimensions: the type
    assert data[at] == GGMLQuantizationType.Q4_K
    assert raw
    path.write_bytes(data[:at] + bytes([GGMLQuantizationType.IQ4_XS]) + data[at + 1 :])
    with pytest.raises(UnsupportedModelError, match=r"weight type IQ4_XS; supported are F32, F16, BF16, Q8_0"):
        import_gguf(path)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    geometry = Geometry(layers=1)
    write_gguf(path, geometry, random_weights(geometry), types="Q8_0")
    return path.read_bytes()


def test_a_file_cut_anywhere_is_one_clear_error(small_file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for size in [*range(200), *range(200, len(small_file), 997), len(small_file) - 1]:
        path.write_bytes(small_file[:size])
        with pytest.raises(ModelError) as caught:
            import_gguf(path)
        assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


def test_a_damaged_header_imports_or_is_one_clear_error(small_file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    rng = np.random.default_rng(3)
    header = small_file.index(b"token_embd") + 2000
    outcomes = set()
    for _ in range(400):
        data = bytearray(small_file)
        for at in rng.integers(0, header, rng.integers(1, 4)):
            data[at] = rng.choice([0, 0xFF, data[at] ^ 1 << int(rng.integers(8))])
        path.write_bytes(data)
        try:
            GgufCheckpoint(path, "bad").close()
            outcomes.add("read")
        except ModelError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_a_file_that_is_no_gguf_names_what_it_begins_with(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UnsupportedModelError, match=r"begins with b'PK"):
        import_gguf(path)
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "big") + bytes(100))
    with pytest.raises(UnsupportedModelError, match="big-endian"):
        import_gguf(path)


def test_fewer_embedding_rows_than_tokens_is_damage(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    write_gguf(tmp_path / "m.gguf", TINY, {**weights, "token_embd": weights["token_embd"][:100]})
    with pytest.raises(CorruptModelError, match="100 rows for 320 tokens"):
        import_gguf(tmp_path / "m.gguf")
