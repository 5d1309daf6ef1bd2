"""Byte-level BPE tokenizers in the tokenizers library's file format.

Bytes stand as printable characters (GPT-2's table), so any text encodes; how text is cut before merging is the
pre-tokenizer's (`pretokenizers.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

JsonObject = dict[str, Any]


class SpecialToken(NamedTuple):
    """A token matched in the text before merging. `special`: a control token, skipped when decoding on request."""

    id: int
    text: str
    special: bool


def byte_characters() -> list[str]:
    """The character that stands for each of the 256 bytes: itself where printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


def byte_level_json(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    special: Sequence[SpecialToken],
    pre_tokenizer: JsonObject,
    *,
    ignore_merges: bool = False,
) -> str:
    """Text of `tokenizer.json`. `ignore_merges`: a word that is a token is taken whole, whatever the merges say."""
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": dict(vocabulary),
        "merges": [list(pair) for pair in merges],
    }
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return tokenizer_json(model, special, normalizer=None, pre_tokenizer=pre_tokenizer, decoder=decoder)


def tokenizer_json(
    model: JsonObject,
    special: Sequence[SpecialToken],
    *,
    normalizer: JsonObject | None,
    pre_tokenizer: JsonObject | None,
    decoder: JsonObject,
) -> str:
    """A whole `tokenizer.json`. It has no post-processor: whoever encodes decides about BOS, once (card.add_bos)."""
    added = [
        {
            "id": token.id,
            "content": token.text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token.special,
        }
        for token in special
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
