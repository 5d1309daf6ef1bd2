"""Text to token ids and back, over the `tokenizers` library and a model's `tokenizer.json`.

Special tokens written in the text are recognised; none is inserted by the library. The beginning-of-sequence token
is this module's own business: exactly one where the model wants one, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import msgspec
from tokenizers import Tokenizer as LibraryTokenizer

from ..errors import InvalidRequestError
from .errors import TokenizerError
from .memory import give_back
from .token_bytes import TokenBytes, TokenizerDocument, token_bytes_of


class Tokenizer:
    """A model's tokenizer. `add_bos`: a sequence begins with `bos_id`. `eos_ids`: tokens that end an answer."""

    def __init__(
        self, tokenizer_json: str | bytes, *, bos_id: int | None, eos_ids: Iterable[int], add_bos: bool
    ) -> None:
        """Raises TokenizerError when the JSON cannot be used, or `add_bos` is asked of a model without a BOS."""
        text = tokenizer_json.decode("utf-8") if isinstance(tokenizer_json, bytes) else tokenizer_json
        try:  # Python's objects go before the library makes its own: together they would be the peak of a small host
            self.bytes: TokenBytes = token_bytes_of(msgspec.json.decode(text, type=TokenizerDocument))
            self._library = LibraryTokenizer.from_str(text)
        except TokenizerError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"the tokenizer's JSON cannot be read: {error}") from error
        if add_bos and bos_id is None:
            raise TokenizerError("the model wants a beginning-of-sequence token and names none")
        self._library.no_truncation()
        self._library.no_padding()
        give_back()
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        self.add_bos = add_bos

    @cached_property
    def max_token_chars(self) -> int:
        """No token stands for more characters of a text: those of the longest have at least a byte each."""
        return max(map(len, self.bytes.table), default=1) or 1

    def encode(self, text: str) -> list[int]:
        """Ids of a whole sequence, raw or rendered by a chat template: with one BOS when the model wants one.

        A text (or a template) that already begins with BOS gets no second one.
        """
        ids = self.encode_part(text)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def encode_part(self, text: str) -> list[int]:
        """Ids of a text that continues a sequence: nothing is added."""
        try:
            return list(self._library.encode(text, add_special_tokens=False).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError(f"the prompt is not valid text: {error}") from error

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids outside the vocabulary are empty."""
        data = b"".join(self.token_bytes(token_id, skip_special=skip_special) for token_id in ids)
        if self.bytes.strips_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes one token adds to a text: empty for special tokens when they are skipped."""
        if skip_special and token_id in self.bytes.specials:
            return b""
        return self.bytes.table[token_id] if 0 <= token_id < len(self.bytes.table) else b""

    def token_text(self, token_id: int | None) -> str:
        """How a token is written in the vocabulary, for templates and messages; empty for None or unknown ids."""
        return "" if token_id is None else self._library.id_to_token(token_id) or ""
