"""A Hugging Face folder (config.json, safetensors, tokenizer files) of a llama model as a checkpoint.

Hugging Face pairs rotary dimension i with i + d/2; kernels know interleaved pairs only, so the rows of q and k are
put into that order as they are read, head by head, each with its own number of heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from .card import ModelCard
from .checkpoint import U8, SourceTensor
from .errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from .hf_config import HfConfig, read_config
from .hf_tokenizer import HfTokenizer, read_json
from .safetensors_file import SafetensorsFile

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"^model\.layers\.([0-9]+)\.(.+)\.weight$")
_SINKS_NAME = re.compile(r"^model\.layers\.([0-9]+)\.self_attn\.sinks$")
_ROTARY_BUFFER = re.compile(r"^model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq$")  # follows from the config


class HfCheckpoint:
    """The model in a folder. Raises UnsupportedModelError naming what was found and what is supported."""

    def __init__(self, folder: Path, name: str) -> None:
        raw = read_json(folder / CONFIG_FILE)
        config = read_config(raw)
        tokenizer = HfTokenizer(folder, raw)
        tokenizer.check_vocabulary(config.vocab_size)
        self.tokenizer_json = tokenizer.json
        self._files: list[SafetensorsFile] = []
        try:
            self.tensors = self._open_tensors(folder, config)
        except BaseException:
            self.close()
            raise
        types = sorted({t.type for t in self.tensors.values()})
        has_sinks = any(name.endswith(".attn_sinks.weight") for name in self.tensors)
        config = config._replace(attention=msgspec.structs.replace(config.attention, has_sinks=has_sinks))
        self.card = ModelCard(
            name=name,
            architecture="llama",
            **config._asdict(),
            bos_id=tokenizer.bos_id,
            eos_ids=tokenizer.eos_ids,
            add_bos=tokenizer.add_bos,
            chat_template=tokenizer.chat_template,
            source=f"Hugging Face folder {folder.name}, weights {', '.join(types)}",
        )

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _open_tensors(self, folder: Path, config: HfConfig) -> dict[str, SourceTensor]:
        tensors: dict[str, SourceTensor] = {}
        for path, names in _weight_files(folder):
            file = SafetensorsFile(path)
            self._files.append(file)
            for name in names if names is not None else file.tensors:
                if name not in file.tensors:
                    raise CorruptModelError(f"{path} does not hold {name}, which {INDEX_FILE} says it does")
                if not _ROTARY_BUFFER.match(name):
                    canonical = _canonical(name)
                    tensors[canonical] = _interleaved(canonical, file.tensors[name], config)
        if config.tied_embeddings:
            tensors.pop("output.weight", None)  # a copy of the embedding that some files carry
        elif "output.weight" not in tensors:
            raise UnsupportedModelError(f"{folder}: lm_head.weight is missing and tie_word_embeddings is not set")
        return tensors


def _weight_files(folder: Path) -> list[tuple[Path, list[str] | None]]:
    """(file, names of its tensors) of a sharded model, or the single file and None for all it holds."""
    if (folder / INDEX_FILE).is_file():
        weight_map = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CorruptModelError(f"{folder / INDEX_FILE} has no weight_map")
        by_file: dict[str, list[str]] = {}
        for name, file in weight_map.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise CorruptModelError(f"{folder / INDEX_FILE}: {name} lies in {file!r}, which is no file's name")
            by_file.setdefault(file, []).append(name)
        return [(folder / file, names) for file, names in sorted(by_file.items())]
    if not (folder / SINGLE_FILE).is_file():
        raise ModelNotFoundError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}; only safetensors are supported")
    return [(folder / SINGLE_FILE, None)]


def _canonical(name: str) -> str:
    """The canonical name; a tensor that is not known keeps its own and is refused by name later."""
    if match := _SINKS_NAME.match(name):
        return f"blk.{int(match[1])}.attn_sinks.weight"
    if match := _LAYER_NAME.match(name):
        part = _OF_LAYER.get(match[2])
        return f"blk.{int(match[1])}.{part}.weight" if part else name
    return _ENDS.get(name, name)


def _interleaved(name: str, tensor: SourceTensor, config: HfConfig) -> SourceTensor:
    """The tensor, q and k with the rows of each head from (i, i + d/2) order to pairs (2i, 2i + 1)."""
    if name.endswith((".attn_q.weight", ".attn_k.weight")) and tensor.rows % config.head_dim == 0:
        read = _interleaved_reader(tensor.read, config.head_dim, tensor.row_bytes)
        return SourceTensor(tensor.name, tensor.type, tensor.rows, tensor.cols, read)
    return tensor


def _interleaved_reader(read: Callable[[int, int], U8], head_dim: int, width: int) -> Callable[[int, int], U8]:
    def read_interleaved(lo: int, hi: int) -> U8:
        first, last = lo // head_dim * head_dim, -(-hi // head_dim) * head_dim
        heads = read(first, last).reshape(-1, 2, head_dim // 2, width)
        rows = np.swapaxes(heads, 1, 2).reshape(last - first, width)
        return rows[lo - first : hi - first]

    return read_interleaved
