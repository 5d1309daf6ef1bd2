"""Small llama GGUF files, written with the gguf package's own writer and quantiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES

from stations.models.byte_level import byte_characters

ALL_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
NORM_NAMES = ("attn_norm", "ffn_norm")
SPECIAL = ["<|end_of_text|>", "<|begin_of_text|>", "<|eot_id|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"]


class Geometry(NamedTuple):
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 96
    vocab: int = 320

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def shapes(self, *, tied: bool) -> dict[str, tuple[int, ...]]:
        kv = self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"token_embd": (self.vocab, self.hidden), "output_norm": (self.hidden,)}
        if not tied:
            shapes["output"] = (self.vocab, self.hidden)
        for layer in range(self.layers):
            of_layer = {
                "attn_norm": (self.hidden,), "ffn_norm": (self.hidden,),
                "attn_q": (self.hidden, self.hidden), "attn_k": (kv, self.hidden), "attn_v": (kv, self.hidden),
                "attn_output": (self.hidden, self.hidden), "ffn_gate": (self.ffn, self.hidden),
                "ffn_up": (self.ffn, self.hidden), "ffn_down": (self.hidden, self.ffn),
            }  # fmt: skip
            shapes.update((f"blk.{layer}.{name}", shape) for name, shape in of_layer.items())
        return shapes


K_GEOMETRY = Geometry(hidden=256, heads=4, kv_heads=2, ffn=256)


def random_weights(geometry: Geometry, *, tied: bool = True, seed: int = 0) -> dict[str, np.ndarray]:
    """f32 weights by GGUF name without `.weight`."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in geometry.shapes(tied=tied).items()}


def encode(values: np.ndarray, weight_type: str, seed: int = 0) -> np.ndarray:
    """Bytes u8 [rows, row bytes] of a matrix in a ggml type; K types, which the package only reads, are random."""
    kind = GGMLQuantizationType[weight_type]
    if not weight_type.endswith("_K"):
        data = quants.quantize(values, kind) if weight_type != "F32" else values
        return np.ascontiguousarray(data).view(np.uint8).reshape(len(values), -1)
    block, size = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (len(values), values.shape[1] // block, size), np.uint8)
    for at in (208,) if weight_type == "Q6_K" else (0, 2):  # f16 scales: finite ones
        scales = rng.uniform(-1e-3, 1e-3, raw.shape[:2]).astype("<f2")
        raw[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    return raw.reshape(len(values), -1)


def write_gguf(
    path: Path,
    geometry: Geometry,
    weights: dict[str, np.ndarray],
    *,
    types: str | dict[str, str] = "F32",
    metadata: dict[str, Any] | None = None,
    pre: str = "llama-bpe",
    architecture: str = "llama",
) -> dict[str, np.ndarray]:
    """Write a model; returns the raw bytes of each tensor as stored. `types`: one, or by the last part of the name."""
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(geometry.layers)
    writer.add_context_length(128)
    writer.add_embedding_length(geometry.hidden)
    writer.add_feed_forward_length(geometry.ffn)
    writer.add_head_count(geometry.heads)
    writer.add_head_count_kv(geometry.kv_heads)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokenizer(writer, geometry.vocab, pre)
    for key, value in (metadata or {}).items():
        _add(writer, key, value)
    raw: dict[str, np.ndarray] = {}
    for number, (name, values) in enumerate(weights.items()):
        part = name.split(".")[-1]
        weight_type = "F32" if values.ndim == 1 else types if isinstance(types, str) else types.get(part, "F32")
        raw[name] = encode(np.atleast_2d(values), weight_type, seed=number)
        data = raw[name] if values.ndim == 2 else values
        writer.add_tensor(
            f"{name}.weight", data, raw_dtype=GGMLQuantizationType[weight_type] if values.ndim == 2 else None
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return raw


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def add_tokenizer(writer: GGUFWriter, vocab: int, pre: str) -> None:
    tokens = [*SPECIAL, *byte_characters()]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    types = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
    pads = [f"[PAD{i}]" for i in range(vocab - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, *pads])
    writer.add_token_types([*types, *([5] * len(pads))])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
