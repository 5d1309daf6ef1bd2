"""The tokenizer files of a Hugging Face folder, as `tokenizer.json` and the card's text conventions.

The post-processor is taken off `tokenizer.json`: whoever encodes puts BOS, once. Whether it did put one is found by
encoding a letter with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from .errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from .hf_config import token_ids
from .sentence_piece_model import read_sentence_piece

TOKENIZER_FILE = "tokenizer.json"
SENTENCE_PIECE_FILE = "tokenizer.model"  # of llama models before the third; these put BOS unless told otherwise


class HfTokenizer:
    """Text conventions of a folder: `json`, ids of BOS and of every end token, BOS before raw text, template."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        path, document = _read_tokenizer(folder)
        settings = read_json(folder / "tokenizer_config.json", optional=True)
        generation = read_json(folder / "generation_config.json", optional=True)
        self._tokenizer = _load(path, document)
        kind = (document.get("model") or {}).get("type", "BPE")
        if kind != "BPE":
            raise UnsupportedModelError(f"{path}: tokenizer model {kind!r}; supported is 'BPE'")
        self.json = json.dumps(
            {**document, "post_processor": None, "truncation": None, "padding": None},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        self.bos_id = self._bos_id(config, generation, settings)
        self.eos_ids = self._eos_ids(config, generation, settings)
        adds_bos = path.name == SENTENCE_PIECE_FILE or self._post_processor_adds_bos(path)
        self.add_bos = bool(settings.get("add_bos_token", adds_bos)) and self.bos_id is not None
        self.chat_template = _chat_template(folder, settings)

    def check_vocabulary(self, rows: int) -> None:
        """Refuse an embedding of `rows` rows that is smaller than the vocabulary."""
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        if largest >= rows:
            raise CorruptModelError(f"the embedding has {rows} rows, the tokenizer has ids up to {largest}")

    def _bos_id(self, *sources: dict[str, Any]) -> int | None:
        config, generation, settings = sources
        for found in (config, generation):
            ids = token_ids(found.get("bos_token_id"), "bos_token_id")
            if ids:
                return ids[0]
        return self._named(settings.get("bos_token"))

    def _eos_ids(self, config: dict[str, Any], generation: dict[str, Any], settings: dict[str, Any]) -> tuple[int, ...]:
        """All that any of the files calls an end token: base and chat models name different ones."""
        ids = {*token_ids(config.get("eos_token_id"), "eos_token_id")}
        ids |= {*token_ids(generation.get("eos_token_id"), "eos_token_id")}
        named = self._named(settings.get("eos_token"))
        return tuple(sorted(ids | ({named} if named is not None else set())))

    def _named(self, token: Any) -> int | None:
        text = token.get("content") if isinstance(token, dict) else token
        return self._tokenizer.token_to_id(text) if isinstance(text, str) else None

    def _post_processor_adds_bos(self, path: Path) -> bool:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a").ids
        if full == plain:
            return False
        if full[1:] != plain or (self.bos_id is not None and full[0] != self.bos_id):
            raise UnsupportedModelError(
                f"{path}: post-processor turns {plain} into {full}; one leading BOS is supported"
            )
        return True


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} when it is optional and absent."""
    if optional and not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ModelNotFoundError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise CorruptModelError(f"{path}: {error}") from error


def _read_tokenizer(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The tokenizer's file and its content as of tokenizer.json, which goes before SentencePiece's own file."""
    path = folder / TOKENIZER_FILE
    if path.is_file():
        return path, read_json(path)
    path = folder / SENTENCE_PIECE_FILE
    if path.is_file():
        return path, json.loads(read_sentence_piece(path))
    raise ModelNotFoundError(f"{folder} has neither {TOKENIZER_FILE} nor {SENTENCE_PIECE_FILE}")


def _load(path: Path, document: dict[str, Any]) -> Tokenizer:
    plain = {**document, "truncation": None, "padding": None}
    try:
        return Tokenizer.from_str(json.dumps(plain, ensure_ascii=False))
    except Exception as error:  # the library raises bare Exception
        raise CorruptModelError(f"{path}: {error}") from error


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    return template if isinstance(template, str) else None
