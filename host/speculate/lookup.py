"""Prompt lookup: the text itself drafts. Where its last tokens stood before, what followed then is what is guessed.

Saxena, *Prompt Lookup Decoding* (2023). Pure and free beside a pass: a dictionary for each length of n-gram, to the
newest place where it ended and went on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

GRAMS = (6, 4, 3, 2, 1)  # tokens that must match, the longest tried first


class Run(NamedTuple):
    """Guessed tokens, and the length of the n-gram they followed: the longer, the likelier they are right."""

    tokens: list[int]
    gram: int


class Lookup:
    """The true tokens so far, prompt and output, and where their n-grams are."""

    def __init__(self, tokens: Iterable[int] = (), *, shortest: int = 1) -> None:
        """`shortest`: tokens that must match at least. One alone is right one time in five, which pays only where
        nothing better guesses and a row more costs little."""
        self._grams = tuple(size for size in GRAMS if size >= shortest)
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """More true tokens."""
        for token in tokens:
            self.append(token)

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, token: int) -> None:
        """One more true token. What stood before it has a continuation from now on, and can be found."""
        tokens = self._tokens
        end = len(tokens)
        for size in self._grams:
            if end >= size:
                self._ends[tuple(tokens[end - size :])] = end
        tokens.append(token)

    def find(self, guesses: Sequence[int], count: int) -> Run:
        """Up to `count` tokens that may follow the true ones and `guesses`; none where no n-gram matches.

        A continuation that reaches the text's own end goes on with what it has guessed: a loop is guessed for ever.
        """
        if count <= 0:
            return Run([], 0)
        tokens = self._tokens
        longest = self._grams[0]
        tail = [*tokens[max(0, len(tokens) + len(guesses) - longest) :], *guesses][-longest:]
        for size in self._grams:
            if len(tail) < size:
                continue
            at = self._ends.get(tuple(tail[-size:]))
            if at is not None:
                run = tokens[at : at + count]
                if len(run) < count:
                    run += guesses[: count - len(run)]
                for index in range(count - len(run)):  # past the end of the text: what was just guessed goes on
                    run.append(run[index])
                return Run(run, size)
        return Run([], 0)
