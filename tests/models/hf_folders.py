"""Small Hugging Face folders of llama models, as transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from stations.models.byte_level import SpecialToken, byte_characters, byte_level_json
from stations.models.pretokenizers import GPT2_WORDS

from .gguf_files import MERGES, SPECIAL, Geometry

_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def hf_name(gguf_name: str) -> str:
    *block, part = gguf_name.split(".")
    if part == "attn_sinks":
        return f"model.layers.{block[1]}.self_attn.sinks"
    return f"model.layers.{block[1]}.{_NAMES[part]}.weight" if block else f"{_NAMES[part]}.weight"


def write_hf(
    folder: Path,
    geometry: Geometry,
    weights: dict[str, np.ndarray],
    *,
    dtype: str = "float32",
    tied: bool = True,
    config: dict[str, Any] | None = None,
    shards: int = 0,
) -> None:
    """`weights` f32 by GGUF name, q and k in Hugging Face's row order; `shards` > 0 writes an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**_config(geometry, tied), **(config or {})}))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [0, 2]}))
    settings = {"bos_token": {"content": SPECIAL[1]}, "eos_token": SPECIAL[0], "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(tokenizer_text())
    entries = {hf_name(name): _stored(values, dtype) for name, values in weights.items()}
    if not shards:
        _save(entries, folder / "model.safetensors")
        return
    weight_map = {}
    for shard in range(shards):
        part = dict(list(entries.items())[shard::shards])
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        _save(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def tokenizer_text(post_processor: dict[str, Any] | None = None) -> str:
    tokens = [*SPECIAL, *byte_characters(), *(m.replace(" ", "") for m in MERGES)]
    special = [SpecialToken(i, text, True) for i, text in enumerate(SPECIAL)]
    pairs = [tuple(m.split(" ")) for m in MERGES]
    text = byte_level_json({t: i for i, t in enumerate(tokens)}, pairs, special, GPT2_WORDS)  # type: ignore[arg-type]
    return json.dumps({**json.loads(text), "post_processor": post_processor})


def bos_processor(token: str = SPECIAL[1], token_id: int = 1) -> dict[str, Any]:
    """The post-processor by which Llama 3's tokenizer.json puts BOS."""
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {token: {"id": token, "ids": [token_id], "tokens": [token]}}
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}


def _config(geometry: Geometry, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": geometry.hidden,
        "intermediate_size": geometry.ffn,
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": geometry.heads,
        "num_key_value_heads": geometry.kv_heads,
        "vocab_size": geometry.vocab,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }


def _stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """The array to save; bfloat16, which numpy does not have, as its bit patterns in uint16."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def _save(arrays: dict[str, np.ndarray], path: Path) -> None:
    save_file(arrays, path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"U16"', b'"BF16"')
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
