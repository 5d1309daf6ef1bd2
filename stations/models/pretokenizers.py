"""Pre-tokenizers of byte-level BPE, by the name that a GGUF file gives (`tokenizer.ggml.pre`).

Each is the published pattern of the tokenizer that the name stands for, as components of the tokenizers library. A
name that is not here is refused: text cut differently before merging gives other ids, silently.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .errors import UnsupportedModelError

JsonObject = dict[str, Any]

GPT2_WORDS: JsonObject = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES: JsonObject = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_DIGITS: JsonObject = {"type": "Digits", "individual_digits": True}

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACE}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%(suffix)s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%(suffix)s|"
    rf"%(digits)s| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _CASED % {"suffix": "", "digits": r"\p{N}"}
_GPT4O = _CASED % {"suffix": f"{_CONTRACTIONS}?", "digits": r"\p{N}{1,3}"}


class PreTokenizer(NamedTuple):
    """How text is cut before merging. `ignore_merges`: a word that is a token is taken whole.

    `add_bos`: whether BOS is put before raw text when the file does not say.
    """

    component: JsonObject
    ignore_merges: bool = False
    add_bos: bool = False


def _sequence(*components: JsonObject) -> JsonObject:
    return {"type": "Sequence", "pretokenizers": list(components)}


def _split(pattern: str) -> JsonObject:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_OF_LLAMA3 = PreTokenizer(_sequence(_split(_LLAMA3), _BYTES), ignore_merges=True, add_bos=True)
_OF_SMOLLM = PreTokenizer(_sequence(_DIGITS, GPT2_WORDS))
_OF_GPT2 = PreTokenizer(GPT2_WORDS)
_OF_QWEN2 = PreTokenizer(_sequence(_split(_QWEN2), _BYTES))
_OF_DEFAULT = PreTokenizer(
    _sequence(_split(r"[\p{P}\$\+<=>\^~\|]+"), GPT2_WORDS, _split(r"\p{N}+"), _split("[0-9][0-9][0-9]"))
)

_BY_NAME: dict[str, PreTokenizer] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0"), _OF_LLAMA3),
    **dict.fromkeys(("smaug-bpe", "dbrx"), _OF_LLAMA3._replace(ignore_merges=False, add_bos=False)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"), _OF_SMOLLM),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "mellum", "gigachat", "a.x-4.0"), _OF_GPT2),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _OF_QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenizer(_sequence(_split(_GPT4O), _BYTES))),
    "tekken": PreTokenizer(_sequence(_split(_TEKKEN), _BYTES), ignore_merges=True, add_bos=True),
    "default": _OF_DEFAULT,
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a GGUF name ("" is "default"); UnsupportedModelError lists the names there are."""
    found = _BY_NAME.get(name or "default")
    if found is None:
        raise UnsupportedModelError(f"pre-tokenizer {name!r} is not supported; supported are {', '.join(_BY_NAME)}")
    return found
