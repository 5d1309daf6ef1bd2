from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stations.layout import unpack
from stations.models import CorruptModelError, ModelError, ModelFolder, ModelNotFoundError, UnsupportedModelError
from stations.models.build import build_folder
from stations.models.card import Attention, Rope, RopeScaling
from stations.models.gguf_model import GgufCheckpoint
from stations.models.hf_model import HfCheckpoint

from .gguf_files import Geometry, random_weights, write_gguf
from .hf_folders import bos_processor, tokenizer_text, write_hf

TINY = Geometry()


def import_hf(folder: Path) -> ModelFolder:
    with closing(HfCheckpoint(folder, "tiny")) as checkpoint:
        return build_folder(checkpoint, folder.parent / "imported")


def pairs_side_by_side(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The permutation of llama.cpp's converter: rows (i, i + d/2) of each head become rows (2i, 2i + 1)."""
    rows, cols = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def gguf_order(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    heads = {"attn_q": TINY.heads, "attn_k": TINY.kv_heads}
    return {n: pairs_side_by_side(w, heads[p]) if (p := n.split(".")[-1]) in heads else w for n, w in weights.items()}


@pytest.mark.parametrize(("dtype", "weight_type"), [("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")])
@pytest.mark.parametrize("shards", [0, 3])
def test_a_folder_and_a_gguf_file_of_the_same_weights_give_the_same_bytes(
    dtype: str, weight_type: str, shards: int, tmp_path: Path
) -> None:
    weights = random_weights(TINY)
    if dtype == "bfloat16":  # values that both ways of writing represent exactly
        weights = {n: (w.view(np.uint32) & 0xFFFF0000).view(np.float32) for n, w in weights.items()}
    if dtype == "float16":
        weights = {n: w.astype(np.float16).astype(np.float32) for n, w in weights.items()}
    write_hf(tmp_path / "hf", TINY, weights, dtype=dtype, shards=shards)
    write_gguf(tmp_path / "m.gguf", TINY, gguf_order(weights), types=weight_type)
    from_hf = import_hf(tmp_path / "hf")
    with closing(GgufCheckpoint(tmp_path / "m.gguf", "tiny")) as checkpoint:
        from_gguf = build_folder(checkpoint, tmp_path / "from_gguf")
    for left, right in zip(from_hf.manifest.files, from_gguf.manifest.files, strict=True):
        assert left == right


def rotate_half(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    left, right = np.split(x, 2)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin])


def rotate_pairs(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    even, odd = x[0::2], x[1::2]
    return np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=1).reshape(-1)


def test_scores_of_every_head_are_those_of_hugging_faces_rotation(tmp_path: Path) -> None:
    """GQA: k has fewer heads than q, and each is reordered by its own count."""
    weights = random_weights(TINY)
    write_hf(tmp_path / "hf", TINY, weights)
    folder = import_hf(tmp_path / "hf")
    qkv = unpack(folder.matrix("attn", 1, "qkv"))
    d, x = TINY.head_dim, np.random.default_rng(1).standard_normal((2, TINY.hidden))
    angles = 7 * 500_000.0 ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles), np.sin(angles)
    for head in range(TINY.heads):
        kv_head = head // (TINY.heads // TINY.kv_heads)
        q_rows, k_rows = slice(head * d, (head + 1) * d), slice(kv_head * d, (kv_head + 1) * d)
        q, k = weights["blk.1.attn_q"][q_rows] @ x[0], weights["blk.1.attn_k"][k_rows] @ x[1]
        expected = rotate_half(q, cos, sin) @ k
        ours_q, ours_k = qkv[q_rows] @ x[0], qkv[TINY.hidden :][k_rows] @ x[1]
        assert rotate_pairs(ours_q, cos, sin) @ ours_k == pytest.approx(expected, rel=1e-5)


def test_a_tied_folder_ignores_its_copy_of_the_embedding(tmp_path: Path) -> None:
    weights = random_weights(TINY, tied=False)
    write_hf(tmp_path / "hf", TINY, weights, tied=True)
    folder = import_hf(tmp_path / "hf")
    assert folder.card.tied_embeddings
    assert np.array_equal(unpack(folder.matrix("head", 0, "head")), weights["token_embd"])


def test_an_untied_folder_keeps_its_head_and_is_refused_without_one(tmp_path: Path) -> None:
    weights = random_weights(TINY, tied=False)
    write_hf(tmp_path / "hf", TINY, weights, tied=False)
    folder = import_hf(tmp_path / "hf")
    assert np.array_equal(unpack(folder.matrix("head", 0, "head")), weights["output"])
    write_hf(tmp_path / "headless", TINY, random_weights(TINY), tied=False)
    with pytest.raises(UnsupportedModelError, match=r"lm_head.weight is missing and tie_word_embeddings is not set"):
        import_hf(tmp_path / "headless")


def test_text_conventions_come_from_all_files(tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY))
    card = import_hf(tmp_path / "hf").card
    assert card.eos_ids == (0, 2)
    assert card.bos_id == 1
    assert not card.add_bos
    assert card.chat_template == "{{ messages }}"
    (tmp_path / "hf" / "chat_template.jinja").write_text("{{ newer }}")
    assert import_hf(tmp_path / "hf").card.chat_template == "{{ newer }}"


def test_the_post_processor_is_taken_off_and_becomes_add_bos(tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY))
    (tmp_path / "hf" / "tokenizer.json").write_text(tokenizer_text(bos_processor()))
    folder = import_hf(tmp_path / "hf")
    assert folder.card.add_bos
    assert json.loads(folder.tokenizer_json)["post_processor"] is None
    settings = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": False}))
    assert not import_hf(tmp_path / "hf").card.add_bos


def test_a_post_processor_that_puts_another_token_is_refused(tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY))
    (tmp_path / "hf" / "tokenizer.json").write_text(tokenizer_text(bos_processor("<|eot_id|>", 2)))
    with pytest.raises(UnsupportedModelError, match="one leading BOS is supported"):
        import_hf(tmp_path / "hf")


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({"rope_scaling": None}, Rope(500_000.0, 16)),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, Rope(500_000.0, 16, RopeScaling(8.0, 1.0, 4.0, 64))),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, Rope(1e4, 16)),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, **LLAMA3}},
            Rope(1e6, 16, RopeScaling(8.0, 1.0, 4.0, 64)),
        ),
    ],
)
def test_rope_is_read_in_both_forms_of_the_config(config: dict[str, Any], rope: Rope, tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY), config=config)
    assert import_hf(tmp_path / "hf").card.rope == rope


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, Attention()),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 32}, Attention(windows=(32, 32))),
        ({"sliding_window": 32, "use_sliding_window": False}, Attention()),
        (
            {"sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]},
            Attention(windows=(0, 32)),
        ),
        ({"sliding_window": 32, "sliding_window_pattern": 2}, Attention(windows=(32, 0))),
        ({"attn_logit_softcapping": 50, "query_pre_attn_scalar": 64}, Attention(softcap=50.0, scale=0.125)),
        ({"attention_multiplier": 0.25}, Attention(scale=0.25)),
    ],
)
def test_windows_softcap_and_scale_are_read_from_the_config(
    config: dict[str, Any], attention: Attention, tmp_path: Path
) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY), config=config)
    assert import_hf(tmp_path / "hf").card.attention == attention


def test_sinks_are_tensors_of_their_own_and_all_layers_have_them(tmp_path: Path) -> None:
    sinks = {f"blk.{layer}.attn_sinks": np.arange(4, dtype=np.float32) - layer for layer in range(2)}
    write_hf(tmp_path / "hf", TINY, {**random_weights(TINY), **sinks}, dtype="bfloat16")
    model = import_hf(tmp_path / "hf")
    assert model.card.attention == Attention(has_sinks=True)
    assert np.array_equal(model.norm("attn", 1, "sinks"), sinks["blk.1.attn_sinks"])
    write_hf(tmp_path / "less", TINY, {**random_weights(TINY), "blk.1.attn_sinks": sinks["blk.1.attn_sinks"]})
    with pytest.raises(UnsupportedModelError, match="1 tensors are missing, first 'blk"):
        import_hf(tmp_path / "less")


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Gemma2ForCausalLM"]}, "architecture Gemma2ForCausalLM; supported are LlamaForCausalLM, Mis"),
    ({"architectures": 5}, "architecture 5; supported are LlamaForCausalLM"),
    ({"architectures": ["MistralForCausalLM"]}, "config.json of MistralForCausalLM lacks sliding_window"),
    ({"attention_bias": True}, "attention_bias = True"),
    ({"hidden_act": "gelu"}, "hidden_act = 'gelu' would change the result; supported is 'silu'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"sliding_window": -1}, "sliding_window is -1"),
    ({"layer_types": ["sliding_attention"] * 2}, "layer_types names sliding layers, sliding_window says none"),
    ({"sliding_window": 8, "layer_types": ["sliding_attention"]}, "said of 1, the model has 2"),
    ({"layer_types": ["linear_attention"] * 2}, "supported are full_attention and sliding_attention"),
    ({"sliding_window": 8, "max_window_layers": 1}, "max_window_layers 1 without layer_types"),
    ({"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    ({"attention_multiplier": 0.1, "query_pre_attn_scalar": 64}, "contradict each other"),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope scaling 'linear'; supported are 'default' and 'llama3'",
    ),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling 'yarn'"),
    ({"rope_scaling": "llama3"}, "rope scaling 'llama3'; an object is expected"),
    ({"hidden_size": "64"}, "hidden_size is '64'"),
    ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
    ({"num_hidden_layers": 3}, "9 tensors are missing"),
    ({"num_hidden_layers": 1}, "9 tensors that a llama model"),
]


@pytest.mark.parametrize(("config", "message"), REFUSALS, ids=[m for _, m in REFUSALS])
def test_what_would_be_ignored_is_refused_by_name(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY), config=config)
    with pytest.raises(UnsupportedModelError) as caught:
        import_hf(tmp_path / "hf")
    assert message in str(caught.value)


def test_damaged_weight_files_are_one_clear_error(tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY))
    path = tmp_path / "hf" / "model.safetensors"
    data = path.read_bytes()
    for size in [*range(40), *range(40, len(data), 4999), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelError):
            import_hf(tmp_path / "hf")
    path.write_bytes(data.replace(b'"F32"', b'"F64"', 1))
    with pytest.raises(UnsupportedModelError, match="is F64; supported in safetensors are F32, F16, BF16"):
        import_hf(tmp_path / "hf")
    assert not (tmp_path / "imported").exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY), shards=2)
    (tmp_path / "hf" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"model-00002-of-00002\.safetensors"):
        import_hf(tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"neither model\.safetensors nor"):
        import_hf(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFoundError, match="tokenizer"):
        import_hf(tmp_path / "hf")


def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", TINY, random_weights(TINY), shards=1)
    index = {"weight_map": {"model.norm.weight": "../secret.safetensors"}}
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptModelError, match="no file's name"):
        import_hf(tmp_path / "hf")


def test_a_tokenizer_with_more_ids_than_rows_is_damage(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    weights["token_embd"] = weights["token_embd"][:200]
    write_hf(tmp_path / "hf", TINY, weights, config={"vocab_size": 200})
    with pytest.raises(CorruptModelError, match="200 rows, the tokenizer has ids up to 267"):
        import_hf(tmp_path / "hf")
