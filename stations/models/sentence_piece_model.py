"""Reading `tokenizer.model`: SentencePiece's own file, a protocol buffer of pieces and settings.

Only the fields that decide about tokens are read; settings that `sentence_piece_json` cannot reproduce are refused.
Source of the field numbers: sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .byte_level import SpecialToken
from .errors import CorruptModelError, UnsupportedModelError
from .sentence_piece import Piece, PieceKind, sentence_piece_json

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # of ModelProto
_TEXT, _SCORE, _TYPE = 1, 2, 3  # of SentencePiece
_MODEL_TYPE = 3  # of TrainerSpec
_CHARACTER_MAP, _DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5  # of NormalizerSpec
_BPE = 2  # of ModelType
_CONTROL, _USER_DEFINED = 3, 4  # of Type
_KINDS = {1: PieceKind.NORMAL, 2: PieceKind.UNKNOWN, 6: PieceKind.BYTE}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class _Field(NamedTuple):
    number: int
    value: int | bytes


def read_sentence_piece(path: Path) -> str:
    """Text of `tokenizer.json` for a `tokenizer.model` file.

    Raises UnsupportedModelError for models other than BPE, and for text normalization; CorruptModelError.
    """
    try:
        fields = list(_fields(path.read_bytes()))
        pieces = [_piece(_bytes(f)) for f in fields if f.number == _PIECES]
        trainer = _settings(fields, _TRAINER)
        normalizer = _settings(fields, _NORMALIZER)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise CorruptModelError(f"{path} is no SentencePiece model: {error}") from error
    if not pieces:
        raise CorruptModelError(f"{path} is no SentencePiece model: it has no pieces")
    if (kind := trainer.get(_MODEL_TYPE, 1)) != _BPE:
        raise UnsupportedModelError(f"{path}: SentencePiece model type {kind!r}; supported is {_BPE} (BPE)")
    if normalizer.get(_CHARACTER_MAP) or normalizer.get(_REMOVE_SPACES, 1) or not normalizer.get(_ESCAPE_SPACES, 1):
        raise UnsupportedModelError(f"{path}: SentencePiece with text normalization; supported is 'identity'")
    special = [
        SpecialToken(i, piece.text, kind == _CONTROL)
        for i, (piece, kind) in enumerate(pieces)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return sentence_piece_json(
        [piece for piece, _ in pieces], special, add_space_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1))
    )


def _piece(data: bytes) -> tuple[Piece, int]:
    text, score, kind = "", 0.0, 1
    for field in _fields(data):
        if field.number == _TEXT:
            text = _bytes(field).decode()
        elif field.number == _SCORE:
            score = struct.unpack("<f", _bytes(field))[0]
        elif field.number == _TYPE:
            kind = _int(field)
    return Piece(text, score, _KINDS.get(kind, PieceKind.OTHER)), kind


def _settings(fields: list[_Field], number: int) -> dict[int, int | bytes]:
    return {f.number: f.value for message in fields if message.number == number for f in _fields(_bytes(message))}


def _fields(data: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield _Field(key >> 3, value)
            continue
        if wire_type == _BYTES:
            size, at = _varint(data, at)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire_type} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"{size} bytes at {at} of {len(data)}")
        yield _Field(key >> 3, data[at : at + size])
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"number of more than 64 bits at byte {at}")


def _bytes(field: _Field) -> bytes:
    if isinstance(field.value, int):
        raise ValueError(f"field {field.number} is a number, not bytes")
    return field.value


def _int(field: _Field) -> int:
    if isinstance(field.value, bytes):
        raise ValueError(f"field {field.number} is bytes, not a number")
    return field.value
