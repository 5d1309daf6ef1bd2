"""The bytes of every token, from a tokenizer's JSON: what makes exact incremental decoding possible.

Two families are known. Byte-level BPE writes each byte as one printable character (GPT-2's table). SentencePiece
writes spaces as U+2581, bytes outside its vocabulary as tokens `<0xE9>`, and may put one space before a text, which
decoding takes off again. Joining bytes and decoding UTF-8 once gives what the family's own decoder gives on valid text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from .errors import TokenizerError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KINDS = ("ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip")
_SUPPORTED = "supported are ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse and Strip"


class TokenBytes(msgspec.Struct, frozen=True):
    """`table[id]`: a token's bytes (empty for ids the vocabulary skips). `specials`: ids of control tokens.

    `strips_first_space`: a text's first space, added in encoding, is taken off in decoding.
    """

    table: tuple[bytes, ...]
    specials: frozenset[int]
    strips_first_space: bool


class _Model(TypedDict, total=False):
    type: Any
    vocab: Any


class TokenizerDocument(TypedDict, total=False):
    """What is read of a `tokenizer.json`: the rest, merges above all, is most of it and makes no objects."""

    decoder: Any
    added_tokens: Any
    model: _Model


def token_bytes_of(document: Mapping[str, Any]) -> TokenBytes:
    """The table of a parsed `tokenizer.json`; TokenizerError for a decoder of another family."""
    steps = _decoder_steps(document.get("decoder"))
    kinds = [str(step.get("type")) for step in steps]
    byte_level = "ByteLevel" in kinds
    if any(kind not in _KINDS for kind in kinds) or (byte_level and len(kinds) > 1):
        raise TokenizerError(f"the tokenizer's decoder is {' + '.join(kinds)}; {_SUPPORTED}")
    added = {int(entry["id"]): entry for entry in document.get("added_tokens", [])}
    pieces = {int(token_id): str(text) for text, token_id in _vocabulary(document["model"])}
    pieces |= {token_id: str(entry["content"]) for token_id, entry in added.items()}
    table = [b""] * (max(pieces, default=-1) + 1)
    for token_id, text in pieces.items():
        table[token_id] = _byte_level(text) if byte_level else _sentencepiece(text, steps)
    specials = frozenset(token_id for token_id, entry in added.items() if entry.get("special"))
    return TokenBytes(tuple(table), specials, not byte_level and _strips_first_space(steps))


def _decoder_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        raise TokenizerError(f"the tokenizer has no decoder; {_SUPPORTED}")
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder.get("decoders", []) for step in _decoder_steps(inner)]
    return [decoder]


def _vocabulary(model: Mapping[str, Any]) -> list[tuple[str, int]]:
    vocab = model.get("vocab")
    if isinstance(vocab, Mapping):
        return list(vocab.items())
    if isinstance(vocab, list):  # Unigram: [piece, score] in the order of ids
        return [(entry[0], token_id) for token_id, entry in enumerate(vocab)]
    raise TokenizerError(f"the tokenizer's model is {model.get('type')!r} without a vocabulary")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes, in order, for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _byte_level(text: str) -> bytes:
    """Added tokens may hold characters outside the alphabet (a space); such a token stands for its own UTF-8."""
    if all(char in _ALPHABET for char in text):
        return bytes(_ALPHABET[char] for char in text)
    return text.encode("utf-8")


def _sentencepiece(text: str, steps: list[Mapping[str, Any]]) -> bytes:
    for step in steps:
        kind = step.get("type")
        if kind == "Metaspace":
            text = text.replace(str(step.get("replacement", "\u2581")), " ")
        elif kind == "Replace":
            pattern = step.get("pattern", {})
            if "String" not in pattern:
                raise TokenizerError(f"the tokenizer's decoder replaces {pattern}; only plain strings are supported")
            text = text.replace(str(pattern["String"]), str(step.get("content", "")))
        elif kind == "ByteFallback" and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
    return text.encode("utf-8")


def _strips_first_space(steps: list[Mapping[str, Any]]) -> bool:
    for step in steps:
        if step.get("type") == "Metaspace":
            return str(step.get("prepend_scheme", "always")) != "never"
        if step.get("type") == "Strip":
            if (step.get("content"), step.get("start"), step.get("stop")) != (" ", 1, 0):
                raise TokenizerError(
                    f"the tokenizer's decoder strips {dict(step)}; only one leading space is supported"
                )
            return True
    return False
