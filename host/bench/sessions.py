"""Several answers at once on one engine: their total rate while all of them decode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from ..engine import Engine
from ..generate import Generation

ROWS_A_TOKEN = 8  # of others' prompts that a session decoding meanwhile may see pass by for each of its own tokens


async def total_rate(engine: Engine, prompt: Sequence[int], new_tokens: int, sessions: int) -> float:
    """Tokens a second of `sessions` answers together, from when each has its first token until each has had time for
    `new_tokens` more on average: prefills are over by then. Their prompts are the same rows in another order.
    """
    spare = (sessions - 1) * len(prompt) // ROWS_A_TOKEN
    max_tokens = min(1 + new_tokens + spare, engine.card.context_length - len(prompt))
    window = _Window(sessions, sessions * new_tokens)
    generations = [
        engine.generate(_turned(prompt, index), max_tokens=max_tokens, ignore_eos=True) for index in range(sessions)
    ]
    async with asyncio.TaskGroup() as group:
        for generation in generations:
            group.create_task(_follow(generation, generations, window))
    return window.rate


class _Window:
    """Counts tokens while all sessions decode."""

    def __init__(self, sessions: int, wanted: int) -> None:
        self._missing = sessions
        self._wanted = wanted
        self._count = 0
        self._is_void = False
        self._began_s = self._ended_s = 0.0

    @property
    def rate(self) -> float:
        """0.0 when one session ended before the last had begun."""
        seconds = self._ended_s - self._began_s
        return self._count / seconds if seconds > 0 and not self._is_void else 0.0

    def began(self) -> None:
        """One more session has its first token."""
        self._missing -= 1
        if not self._missing:
            self._began_s = time.perf_counter()

    def token(self) -> bool:
        """One more token of any session; True when that was the last one wanted."""
        if self._missing or self._ended_s:
            return bool(self._ended_s)
        self._count += 1
        if self._count == self._wanted:
            self.close()
        return bool(self._ended_s)

    def close(self) -> None:
        """No longer all of them decode."""
        if self._missing:
            self._is_void = True
        elif not self._ended_s:
            self._ended_s = time.perf_counter()


async def _follow(generation: Generation, all_of_them: Sequence[Generation], window: _Window) -> None:
    is_first = True
    async for _ in generation:
        if is_first:
            window.began()
            is_first = False
        elif window.token():
            for other in all_of_them:
                other.cancel()
            return
    window.close()


def _turned(prompt: Sequence[int], by: int) -> tuple[int, ...]:
    return (*prompt[by:], *prompt[:by])
