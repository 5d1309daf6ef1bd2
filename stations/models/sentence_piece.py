"""SentencePiece vocabularies (scores, byte pieces) as BPE tokenizers of the tokenizers library.

SentencePiece's BPE merges, among all adjacent pairs whose union is a piece, the one of highest score; the library
merges the pair of lowest rank. Listing every split of every piece by falling score gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from .byte_level import SpecialToken, tokenizer_json
from .errors import UnsupportedModelError

SPACE = "▁"  # stands for a space in pieces
_BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


class PieceKind(Enum):
    """NORMAL pieces merge; BYTE pieces spell what no piece covers; OTHER is control, user-defined or unused."""

    NORMAL = auto()
    BYTE = auto()
    UNKNOWN = auto()
    OTHER = auto()


class Piece(NamedTuple):
    """One entry of the vocabulary; its place in the list is its id."""

    text: str
    score: float
    kind: PieceKind


def sentence_piece_json(pieces: Sequence[Piece], special: Sequence[SpecialToken], *, add_space_prefix: bool) -> str:
    """Text of `tokenizer.json`. `add_space_prefix`: a space is put before the text and after each special token.

    Raises UnsupportedModelError when a byte has no piece and there is no unknown token, as some text cannot encode.
    """
    vocabulary = {piece.text: i for i, piece in reversed(list(enumerate(pieces)))}
    unknown = next((p.text for p in pieces if p.kind is PieceKind.UNKNOWN), None)
    num_bytes = sum(text in vocabulary for text in _BYTE_PIECES)
    if num_bytes < len(_BYTE_PIECES) and unknown is None:
        raise UnsupportedModelError(f"SentencePiece with {num_bytes} of 256 byte pieces and no unknown token")
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": num_bytes == len(_BYTE_PIECES),
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": _merges(pieces),
    }
    to_space: dict[str, Any] = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    from_space: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend, strip = {"type": "Prepend", "prepend": SPACE}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    normalizers = [prepend, from_space] if add_space_prefix else [from_space]
    decoders = [to_space, {"type": "ByteFallback"}, {"type": "Fuse"}, *([strip] if add_space_prefix else [])]
    return tokenizer_json(
        model,
        special,
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _merges(pieces: Sequence[Piece]) -> list[list[str]]:
    ids = {p.text: i for i, p in reversed(list(enumerate(pieces))) if p.kind is PieceKind.NORMAL}
    ranked: list[tuple[float, int, int, str, str]] = []
    for text, i in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                ranked.append((-pieces[i].score, ids[left], ids[right], left, right))
    ranked.sort()
    return [[left, right] for *_, left, right in ranked]
