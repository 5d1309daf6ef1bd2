"""Texts cut into windows that each fill a context: ordinary text, then passages repeated from early in the window.

Perplexity on ordinary text hides lost context, so every window ends with two passages that stood at an eighth and at a
quarter of it: who still holds those rows predicts them easily (recall). Rows in the first half of a window are not
scored: there caches have had little to lose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import InvalidRequestError

NUM_PASSAGES = 2
MAX_PASSAGE = 64  # tokens
KNOWN_AFTER = 8  # tokens of a passage that no one can know are repeated
MIN_CONTEXT = 64  # tokens; below, passages have no tokens to score


class Window(msgspec.Struct, frozen=True):
    """`ids` fill the context; rows `first_scored` … len(ids) - 2 predict a token that counts.

    `text_end` is where ordinary text ends and the passages, `passage` tokens each, begin.
    """

    ids: tuple[int, ...]
    first_scored: int
    text_end: int
    passage: int

    @property
    def num_rows(self) -> int:
        """Rows to feed: the last token is only predicted."""
        return len(self.ids) - 1

    def targets(self, lo: int, hi: int) -> npt.NDArray[np.int64]:
        """The tokens that rows lo … hi - 1 predict."""
        return np.array(self.ids[lo + 1 : hi + 1], np.int64)

    @property
    def text_rows(self) -> slice:
        """Rows that predict ordinary text, of the window."""
        return slice(self.first_scored, self.text_end - 1)

    @property
    def recall_rows(self) -> list[slice]:
        """Rows that predict a repeated passage, beyond the tokens that give it away, of the window."""
        known = min(KNOWN_AFTER, self.passage // 2)
        begins = range(self.text_end, len(self.ids), self.passage)
        return [slice(begin + known - 1, begin + self.passage - 1) for begin in begins]


def passage_length(context: int) -> int:
    return min(MAX_PASSAGE, context // 16)


def check_context(context: int, context_length: int) -> None:
    """InvalidRequestError unless a window of `context` tokens fits the model and has something to score."""
    if not MIN_CONTEXT <= context <= context_length:
        raise InvalidRequestError(f"context {context}: {MIN_CONTEXT} to {context_length} tokens are allowed")


def windows_of(text: Sequence[int], context: int) -> Iterator[Window]:
    """Windows of `context` tokens over one text, without overlap; a rest too short for one is left out."""
    passage = passage_length(context)
    fresh = context - NUM_PASSAGES * passage
    for at in range(0, len(text) - fresh + 1, fresh):
        ordinary = tuple(text[at : at + fresh])
        ids = ordinary + _passage(ordinary, context // 4, passage) + _passage(ordinary, context // 8, passage)
        yield Window(ids, context // 2, fresh, passage)


def _passage(ordinary: tuple[int, ...], at: int, length: int) -> tuple[int, ...]:
    return ordinary[at : at + length]
