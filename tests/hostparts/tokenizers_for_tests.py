"""Small real tokenizers: byte-level BPE and SentencePiece-like, as models of the field ship them."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

from host.text import Tokenizer

BOS, EOS, TURN_END = 0, 1, 2
SPECIALS = ("<s>", "</s>", "<|im_end|>")

_CORPUS = ["the quick brown fox jumps over the lazy dog", "Dear Name, I hope", "naïve café 日本語 鶫", "12345 !?"]


def byte_level_json() -> str:
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(_CORPUS, trainer)
    document: dict[str, Any] = json.loads(library.to_str())
    document["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return json.dumps(document)


def sentencepiece_json(*, strips: bool = True) -> str:
    """Pieces with U+2581 for spaces, `<0x..>` for bytes outside the vocabulary, one space put before a text."""
    letters = sorted({char for text in _CORPUS for char in text.replace(" ", "\u2581")} - {"鶫"})
    words = ["\u2581Dear", "\u2581[", "Name", "],", "\u2581I", "\u2581hope", "\u2581\u2581"]
    pieces = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    if strips:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        normalizers.insert(0, {"type": "Prepend", "prepend": "\u2581"})
    model = {"type": "BPE", "byte_fallback": True, "fuse_unk": True, "unk_token": None, "vocab": vocab, "merges": []}
    added = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, text in enumerate(SPECIALS)
    ]  # fmt: skip
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model,
        }
    )


def tokenizer(tokenizer_json: str, *, add_bos: bool = False) -> Tokenizer:
    return Tokenizer(tokenizer_json, bos_id=BOS, eos_ids=(EOS,), add_bos=add_bos)


BYTE_LEVEL = tokenizer(byte_level_json())
SENTENCEPIECE = tokenizer(sentencepiece_json())
LIBRARY = {
    "byte level": LibraryTokenizer.from_str(byte_level_json()),
    "sentencepiece": LibraryTokenizer.from_str(sentencepiece_json()),
}
BY_NAME = {"byte level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE}
