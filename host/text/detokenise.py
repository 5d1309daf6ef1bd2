"""Incremental decoding: each token's text as soon as it is certain, so that the pieces join to the full decode."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from .tokenizer import Tokenizer


class Detokeniser:
    """Turns tokens into text one at a time.

    Bytes of an unfinished character wait for the rest, so no piece shows a U+FFFD that the whole text would not.
    The pieces, `flush` included, join to `tokenizer.decode(ids)`; with a `context` (the prompt of a plain
    continuation) to what decoding adds to the context's text, so a SentencePiece word keeps its space.
    """

    def __init__(self, tokenizer: Tokenizer, *, context: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        begun = any(tokenizer.token_bytes(token_id) for token_id in context)
        self._strip_space = tokenizer.bytes.strips_first_space and not begun

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; often one word, sometimes nothing."""
        data = self._tokenizer.token_bytes(token_id)
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The end of the text: an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
