"""A GGUF file of the llama architecture as a checkpoint. What a file says beyond what is understood is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .card import Attention, ModelCard, Rope
from .checkpoint import F32, SourceTensor
from .errors import CorruptModelError, UnsupportedModelError
from .gguf_file import GgufFile
from .gguf_tokenizer import GgufTokenizer
from .sliding import layer_windows

ROPE_FREQS = "rope_freqs.weight"  # Llama 3 scaling as divisors of the frequencies, one a pair

_KNOWN_KEYS = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.scale", "attn_logit_softcapping",
}  # fmt: skip
_HARMLESS_KEYS = {"tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned"}
# Keys that change the arithmetic, with the values under which they do not.
_NEUTRAL = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (1.0,),
    "rope.scale_linear": (1.0,),
    "use_parallel_residual": (False,),
    "logit_scale": (0.0, 1.0),
}


class GgufCheckpoint:
    """The model in a GGUF file. Raises UnsupportedModelError naming what was found and what is supported."""

    def __init__(self, path: Path, name: str) -> None:
        self._file = GgufFile(path)
        try:
            self._metadata = self._file.metadata
            self._check_kind()
            tensors = dict(self._file.tensors)
            freqs = tensors.pop(ROPE_FREQS, None)
            tokenizer = GgufTokenizer(self._metadata)
            self.tokenizer_json = tokenizer.json
            self.tensors: dict[str, SourceTensor] = tensors
            self.card = self._card(name, tokenizer, freqs)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _check_kind(self) -> None:
        architecture = self._metadata.get("general.architecture")
        if architecture != "llama":
            raise UnsupportedModelError(f"{self._file.path}: architecture {architecture!r}; supported is 'llama'")
        if (parts := self._metadata.get("split.count", 1)) not in (0, 1):
            raise UnsupportedModelError(f"{self._file.path} is one of {parts} parts; merge them first")
        if (kind := self._metadata.get("general.type", "model")) != "model":
            raise UnsupportedModelError(f"{self._file.path} holds a {kind!r}; supported is 'model'")
        for key, value in self._metadata.items():
            name = key.removeprefix("llama.")
            if name == key or name in _KNOWN_KEYS or name in _HARMLESS_KEYS or value in _NEUTRAL.get(name, ()):
                continue
            raise UnsupportedModelError(f"{self._file.path}: {key} = {value!r} would change the result; not supported")

    def _card(self, name: str, tokenizer: GgufTokenizer, freqs: SourceTensor | None) -> ModelCard:
        hidden, heads = self._integer("embedding_length"), self._integer("attention.head_count")
        head_dim = self._integer("attention.key_length", hidden // heads)
        if (value_dim := self._integer("attention.value_length", head_dim)) != head_dim:
            raise UnsupportedModelError(f"keys of {head_dim} and values of {value_dim} a head; they must be equal")
        rope_dim = self._integer("rope.dimension_count", head_dim)
        if rope_dim > head_dim or rope_dim % 2:
            raise UnsupportedModelError(f"rotary dimension {rope_dim} of a head of {head_dim}: even, and no larger")
        embedding = self.tensors.get("token_embd.weight")
        if embedding is None:
            raise UnsupportedModelError(f"{self._file.path}: tensor 'token_embd.weight' is missing")
        tokenizer.check_vocabulary(embedding.rows)
        types = sorted({t.type for t in self.tensors.values()})
        return ModelCard(
            name=name,
            architecture="llama",
            num_layers=self._integer("block_count"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=self._integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn_size=self._integer("feed_forward_length"),
            vocab_size=embedding.rows,
            context_length=self._integer("context_length"),
            rms_eps=self._number("attention.layer_norm_rms_epsilon"),
            rope=Rope(self._number("rope.freq_base", 10_000.0), rope_dim, factors=_rope_factors(freqs, rope_dim)),
            tied_embeddings="output.weight" not in self.tensors,
            bos_id=tokenizer.bos_id,
            eos_ids=tokenizer.eos_ids,
            add_bos=tokenizer.add_bos,
            chat_template=tokenizer.chat_template,
            attention=self._attention(),
            source=f"GGUF {self._file.path.name}, weights {', '.join(types)}",
        )

    def _attention(self) -> Attention:
        layers, window = self._integer("block_count"), self._value("attention.sliding_window", 0)
        pattern = self._metadata.get("llama.attention.sliding_window_pattern")
        if not isinstance(window, int) or not 0 <= window < 1 << 31:
            raise UnsupportedModelError(f"llama.attention.sliding_window is {window!r}; a number of rows is expected")
        if pattern is not None and not isinstance(pattern, int | list):
            raise UnsupportedModelError(f"llama.attention.sliding_window_pattern is {pattern!r}; a number or a list")
        slides = list(map(bool, pattern)) if isinstance(pattern, list) else pattern or 0
        return Attention(
            windows=layer_windows(window, layers, slides),
            softcap=self._number("attn_logit_softcapping", 0.0, allows_zero=True),
            scale=self._number("attention.scale", 0.0, allows_zero=True),
            has_sinks=any(name.endswith(".attn_sinks.weight") for name in self.tensors),
        )

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # per layer, all alike
        if not isinstance(value, int) or not 0 < value < 1 << 31:
            raise UnsupportedModelError(f"llama.{key} is {value!r}; one positive number for all layers is supported")
        return value

    def _number(self, key: str, default: float | None = None, *, allows_zero: bool = False) -> float:
        value = self._value(key, default)
        if allows_zero and value == 0:
            return 0.0
        if not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise UnsupportedModelError(f"llama.{key} is {value!r}; a positive number is expected")
        return float(value)

    def _value(self, key: str, default: Any) -> Any:
        value = self._metadata.get(f"llama.{key}", default)
        if value is None:
            raise CorruptModelError(f"{self._file.path}: metadata llama.{key} is missing")
        return value


def _rope_factors(freqs: SourceTensor | None, rope_dim: int) -> tuple[float, ...] | None:
    if freqs is None:
        return None
    values: F32 = freqs.vector()
    if values.size != rope_dim // 2 or not (values > 0).all():
        raise UnsupportedModelError(f"{ROPE_FREQS} has {values.size} factors, {rope_dim // 2} positive ones are needed")
    return tuple(float(v) for v in values)
