"""`config.json` of a Hugging Face llama or mistral model, read for the card, and refusal of what would be ignored."""

from __future__ import annotations

from typing import Any, NamedTuple

from .card import Attention, Rope, RopeScaling
from .errors import CorruptModelError, UnsupportedModelError
from .sliding import layer_windows

ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral"}  # of one arithmetic; their model types
_SPELLED_OUT = ("sliding_window", "num_key_value_heads")  # keys whose defaults are other ones for Mistral

# Keys that change the arithmetic, with the values (None: absent) under which they do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "quantization_config": (None,),
    "num_local_experts": (None,),
    "partial_rotary_factor": (1.0, None),
    "rope_interleaved": (False, None),
    "embedding_multiplier": (1.0, None),
    "residual_multiplier": (1.0, None),
    "logits_scaling": (1.0, None),
    "final_logit_softcapping": (None,),
}


class HfConfig(NamedTuple):
    """The fields of `config.json` that make the card."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_length: int
    rms_eps: float
    rope: Rope
    tied_embeddings: bool
    attention: Attention  # but for sinks, which are tensors


def read_config(config: dict[str, Any]) -> HfConfig:
    """Check and read a config. Raises UnsupportedModelError naming the key, its value and what is supported."""
    architectures = config.get("architectures") or [config.get("model_type")]
    if architectures not in [[name] for pair in ARCHITECTURES.items() for name in pair]:
        named = ", ".join(map(str, architectures)) if isinstance(architectures, list) else repr(architectures)
        raise UnsupportedModelError(f"architecture {named}; supported are {', '.join(ARCHITECTURES)}")
    if architectures[0] in ("MistralForCausalLM", "mistral") and (
        missing := [key for key in _SPELLED_OUT if key not in config]
    ):
        raise UnsupportedModelError(f"config.json of {architectures[0]} lacks {', '.join(missing)}")
    for key, neutral in _NEUTRAL.items():
        if (value := config.get(key)) not in neutral:
            allowed = " or ".join(repr(v) for v in neutral if v is not None) or "its absence"
            raise UnsupportedModelError(
                f"config.json: {key} = {value!r} would change the result; supported is {allowed}"
            )
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    head_dim = _integer(config, "head_dim", hidden // heads)
    if head_dim % 2:
        raise UnsupportedModelError(f"config.json: head_dim {head_dim} is odd; rotary pairs need an even one")
    return HfConfig(
        num_layers=_integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_integer(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        ffn_size=_integer(config, "intermediate_size"),
        vocab_size=_integer(config, "vocab_size"),
        context_length=_integer(config, "max_position_embeddings"),
        rms_eps=_number(config, "rms_norm_eps"),
        rope=_rope(config, head_dim),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention=_attention(config, _integer(config, "num_hidden_layers")),
    )


def token_ids(value: Any, name: str) -> tuple[int, ...]:
    """One id, a list of ids, or nothing, as a tuple."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and i >= 0 for i in ids):
        raise CorruptModelError(f"{name} is {value!r}; an id or a list of ids is expected")
    return tuple(ids)


def _attention(config: dict[str, Any], num_layers: int) -> Attention:
    multiplier, scalar = config.get("attention_multiplier"), config.get("query_pre_attn_scalar")
    if multiplier is not None and scalar is not None:
        raise UnsupportedModelError(
            f"config.json: attention_multiplier {multiplier!r} and query_pre_attn_scalar {scalar!r} contradict"
            " each other"
        )
    scale = _number(config, "attention_multiplier", 0.0) if multiplier is not None else 0.0
    if scalar is not None:
        scale = _number(config, "query_pre_attn_scalar") ** -0.5
    capped = config.get("attn_logit_softcapping") is not None
    return Attention(
        windows=_windows(config, num_layers),
        softcap=_number(config, "attn_logit_softcapping") if capped else 0.0,
        scale=scale,
    )


def _windows(config: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """One window for all layers, or for those that one of three forms names."""
    kinds, pattern = config.get("layer_types"), config.get("sliding_window_pattern")
    slides: list[bool] | int = 0
    if kinds is not None:
        if not isinstance(kinds, list) or not set(kinds) <= {"full_attention", "sliding_attention"}:
            raise UnsupportedModelError(
                f"config.json: layer_types {kinds!r}; supported are full_attention and sliding_attention"
            )
        slides = [kind == "sliding_attention" for kind in kinds]
    elif pattern is not None:
        slides = _integer(config, "sliding_window_pattern")
    if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        if kinds is not None and "sliding_attention" in kinds:
            raise UnsupportedModelError("config.json: layer_types names sliding layers, sliding_window says none")
        return ()
    if kinds is None and (first := config.get("max_window_layers")) is not None:
        raise UnsupportedModelError(f"config.json: max_window_layers {first!r} without layer_types; name the layers")
    return layer_windows(_integer(config, "sliding_window"), num_layers, slides)


def _rope(config: dict[str, Any], head_dim: int) -> Rope:
    """Both forms: `rope_theta` beside `rope_scaling`, and the newer `rope_parameters` that holds all of it."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise UnsupportedModelError(f"config.json: rope scaling {parameters!r}; an object is expected")
    theta = _number(parameters if "rope_theta" in parameters else config, "rope_theta", 10_000.0)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return Rope(theta, head_dim)
    if kind != "llama3":
        raise UnsupportedModelError(f"config.json: rope scaling {kind!r}; supported are 'default' and 'llama3'")
    scaling = RopeScaling(
        factor=_number(parameters, "factor"),
        low_freq_factor=_number(parameters, "low_freq_factor"),
        high_freq_factor=_number(parameters, "high_freq_factor"),
        original_context=_integer(parameters, "original_max_position_embeddings"),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise UnsupportedModelError(
            f"config.json: rope scaling with high_freq_factor {scaling.high_freq_factor} not above "
            f"low_freq_factor {scaling.low_freq_factor}"
        )
    return Rope(theta, head_dim, scaling)


def _integer(config: dict[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise UnsupportedModelError(f"config.json: {key} is {value!r}; a positive number is expected")
    return value


def _number(config: dict[str, Any], key: str, default: float | None = None) -> float:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise UnsupportedModelError(f"config.json: {key} is {value!r}; a positive number is expected")
    return float(value)
