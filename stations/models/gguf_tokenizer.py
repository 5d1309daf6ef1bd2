"""The tokenizer in a GGUF file's metadata, as `tokenizer.json` and the card's text conventions."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from .byte_level import SpecialToken, byte_level_json
from .errors import CorruptModelError, UnsupportedModelError
from .pretokenizers import pre_tokenizer
from .sentence_piece import Piece, PieceKind, sentence_piece_json

_PREFIX = "tokenizer.ggml."

# Control tokens that end a turn under these names; files older than the metadata keys for them have only the name.
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufTokenizer:
    """Text conventions of a GGUF file: `json`, ids of BOS and of every end token, BOS before raw text, template."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self._tokens: list[str] = self._strings("tokens")
        types = metadata.get(f"{_PREFIX}token_type", [TokenType.NORMAL] * len(self._tokens))
        if not isinstance(types, list) or len(types) != len(self._tokens):
            raise CorruptModelError(f"{_PREFIX}token_type does not have {len(self._tokens)} entries, as tokens has")
        try:
            self._types = [TokenType(t) for t in types]
        except ValueError as error:
            raise UnsupportedModelError(f"token type: {error}; known are 1 to {max(TokenType).value}") from error
        self._special = [
            SpecialToken(i, text, kind is TokenType.CONTROL)
            for i, (text, kind) in enumerate(zip(self._tokens, self._types, strict=True))
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ]
        model = metadata.get(f"{_PREFIX}model")
        if model == "gpt2":
            self.json, default_bos = self._byte_level()
        elif model == "llama":
            self.json, default_bos = self._sentence_piece(), True
        else:
            raise UnsupportedModelError(
                f"tokenizer model {model!r}; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)"
            )
        self.bos_id = self._id("bos_token_id")
        self.add_bos = bool(metadata.get(f"{_PREFIX}add_bos_token", default_bos)) and self.bos_id is not None
        if metadata.get(f"{_PREFIX}add_eos_token", False):
            raise UnsupportedModelError(f"{_PREFIX}add_eos_token is set: an end token after every prompt")
        self.eos_ids = self._end_tokens()
        template = metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None

    def check_vocabulary(self, rows: int) -> None:
        """Refuse an embedding of `rows` rows that is smaller than the vocabulary."""
        if rows < len(self._tokens):
            raise CorruptModelError(f"the embedding has {rows} rows for {len(self._tokens)} tokens")

    def _byte_level(self) -> tuple[str, bool]:
        cut = pre_tokenizer(str(self._metadata.get(f"{_PREFIX}pre", "")))
        vocabulary = {text: i for i, text in reversed(list(enumerate(self._tokens)))}
        merges = []
        for merge in self._strings("merges"):
            left, separator, right = merge.partition(" ")
            if not separator or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
                raise CorruptModelError(f"{_PREFIX}merges: {merge!r} is no pair of tokens that makes a token")
            merges.append((left, right))
        text = byte_level_json(vocabulary, merges, self._special, cut.component, ignore_merges=cut.ignore_merges)
        return text, cut.add_bos

    def _sentence_piece(self) -> str:
        scores = self._metadata.get(f"{_PREFIX}scores")
        if not isinstance(scores, list) or len(scores) != len(self._tokens) or not all(map(_is_number, scores)):
            raise CorruptModelError(f"{_PREFIX}scores does not have {len(self._tokens)} numbers, one a token")
        kinds = {
            TokenType.NORMAL: PieceKind.NORMAL,
            TokenType.BYTE: PieceKind.BYTE,
            TokenType.UNKNOWN: PieceKind.UNKNOWN,
        }
        pieces = [
            Piece(text, float(score), kinds.get(kind, PieceKind.OTHER))
            for text, score, kind in zip(self._tokens, scores, self._types, strict=True)
        ]
        prefix = bool(self._metadata.get(f"{_PREFIX}add_space_prefix", True))
        return sentence_piece_json(pieces, self._special, add_space_prefix=prefix)

    def _end_tokens(self) -> tuple[int, ...]:
        ids = {self._id(f"{name}_token_id") for name in ("eos", "eot", "eom")}
        ids |= {t.id for t in self._special if t.special and t.text in _TURN_ENDS}
        return tuple(sorted(i for i in ids if i is not None))

    def _id(self, name: str) -> int | None:
        value = self._metadata.get(f"{_PREFIX}{name}")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self._tokens):
            raise CorruptModelError(f"{_PREFIX}{name} is {value!r}, the vocabulary has {len(self._tokens)} tokens")
        return value

    def _strings(self, name: str) -> list[str]:
        value = self._metadata.get(f"{_PREFIX}{name}")
        if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
            raise CorruptModelError(f"metadata {_PREFIX}{name} is missing or no list of strings")
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
