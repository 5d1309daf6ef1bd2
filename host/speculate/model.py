"""A small model in the host's process that guesses: it is run a few tokens ahead, then the large one verifies them.

Its station is embedded as in plan solo. Sessions on it are kept between generations, so that the next turn of a
conversation finds most of its rows there. It chooses tokens as the large model does, with the same noise. Whatever goes
wrong with it costs guesses, never the generation.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from aeonflow.errors import AeonflowError
from aeonflow.tensors import Want

from ..errors import InvalidRequestError
from ..sampling import SamplingParams, choose
from ..sequence import Answer, TokenSequence
from ..session import IDLE_MARGIN
from ..text import TextModel

if TYPE_CHECKING:
    from ..engine import Engine
    from ..request import Request

Tokens: TypeAlias = "array[int]"  # of type "I"

MAX_IDLE = 4  # sessions kept for later generations
CHUNK_ROWS = 256  # of a prompt
MAX_MISSING = 64  # rows of the text that may be computed before the first guess; with more, decoding goes on without
WEIGHT_OF_NEW = 0.2


class DraftModel:
    """One for an engine. `engine` runs the small model; `large` is the text side of the one that it guesses for."""

    def __init__(self, engine: Engine, large: TextModel) -> None:
        """Raises InvalidRequestError for a model whose token ids mean something else."""
        check_tokenizer(engine.network.bundle.text, large)
        self._engine = engine
        self._idle: list[TokenSequence] = []

    async def open(self, request: Request) -> ModelProposer | None:
        """Guesses for one generation; the prompt's rows are on their way. None where the small model has no room."""
        prompt = array("I", request.prompt_ids)
        limit = min(request.num_positions, self._engine.max_positions)
        sequence = self._take(prompt, limit)
        if sequence is None:
            try:
                sequence = await self._engine.open_sequence(min(max(2 * limit, 1024), self._engine.max_positions))
            except AeonflowError:
                return None
        return ModelProposer(self, sequence, prompt, request.sampling, self._engine.clock, self._engine.token_s)

    def release(self, sequence: TokenSequence, *, is_broken: bool) -> None:
        """A generation is over; its session waits for another, unless something went wrong with it."""
        network = self._engine.network
        sequence.on_answer = _ignored
        sequence.on_error = _ignored
        if is_broken:
            network.close_session(sequence)
        if sequence.is_closed:
            return
        if not sequence.is_tidy:
            network.cancel(sequence)
        self._idle.append(sequence)
        while len(self._idle) > MAX_IDLE:
            network.close_session(self._idle.pop(0))

    def _take(self, prompt: Tokens, num_positions: int) -> TokenSequence | None:
        """The idle session that holds most of the prompt; those that the station is about to forget are closed."""
        network, now = self._engine.network, self._engine.clock()
        for one in self._idle:
            if now - one.progress_s > IDLE_MARGIN * network.idle_s:
                network.close_session(one)
        self._idle = [one for one in self._idle if not one.is_closed]
        fitting = [one for one in self._idle if one.max_positions >= num_positions]
        if not fitting:
            return None
        best = max(fitting, key=lambda one: num_common(one, prompt))
        self._idle.remove(best)
        return best


class ModelProposer:
    """Guesses for one generation, one run at a time."""

    def __init__(
        self, model: DraftModel, sequence: TokenSequence, prompt: Tokens, sampling: SamplingParams,
        clock: Callable[[], float], token_s: float,
    ) -> None:  # fmt: skip
        self._model = model
        self._sequence = sequence
        self._sampling = msgspec.structs.replace(sampling, logprobs=None)
        self._clock = clock
        self._token_s = token_s
        self._done: Callable[[list[int], float], None] | None = None
        self._guesses: list[int] = []
        self._count = 0
        self._began_s = 0.0
        self._is_broken = False
        sequence.on_answer = self._answered
        sequence.on_error = self._failed
        self._follow(prompt, Want.NONE)

    def token_s(self) -> float:
        """Seconds that a guess takes."""
        return self._token_s

    def propose(self, tokens: Tokens, count: int, done: Callable[[list[int], float], None]) -> None:
        """See `policy.Proposer`."""
        self._began_s = self._clock()
        self._done, self._guesses, self._count = done, [], count
        room = self._sequence.max_positions - len(tokens) + 1
        if self._is_broken or room < count or len(tokens) - num_common(self._sequence, tokens) > MAX_MISSING:
            if not self._is_broken and room >= count:
                self._follow(tokens, Want.NONE)
            self._finish()
            return
        self._follow(tokens, Want.LAST)

    def close(self) -> None:
        """The generation is over."""
        self._done = None
        self._model.release(self._sequence, is_broken=self._is_broken)

    def _follow(self, tokens: Tokens, want: Want) -> None:
        """Bring the session to `tokens`; the last one's logits where they are wanted."""
        sequence = self._sequence
        sent = sequence.tokens
        base = first_difference(sent, tokens, min(len(sent), len(tokens) - (want is Want.LAST)))
        if base < len(sent):
            sequence.restart(min(base, sequence.length))
        try:
            for at in range(len(sent), min(len(tokens), sequence.max_positions), CHUNK_ROWS):
                rows = tokens[at : at + CHUNK_ROWS]
                sequence.send(rows, want if at + len(rows) == len(tokens) else Want.NONE)
        except AeonflowError as error:
            self._failed(error)

    def _answered(self, answer: Answer) -> None:
        if answer.logits is None or self._done is None:
            return
        try:
            token = choose(answer.logits[-1], self._sampling, answer.last + 1).token
            self._guesses.append(token)
            if len(self._guesses) == self._count:
                self._finish()
            else:
                self._sequence.send((token,), Want.LAST)
        except AeonflowError as error:
            self._failed(error)

    def _failed(self, error: AeonflowError) -> None:
        self._is_broken = True
        self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        seconds = self._clock() - self._began_s
        if self._guesses:
            self._token_s += WEIGHT_OF_NEW * (seconds / len(self._guesses) - self._token_s)
        done(self._guesses, seconds)


def num_common(sequence: TokenSequence, tokens: Tokens) -> int:
    """Answered rows of `sequence` that are the first ones of `tokens`."""
    return first_difference(sequence.tokens, tokens, min(sequence.length, len(tokens)))


def first_difference(held: Tokens, wanted: Tokens, limit: int) -> int:
    """How many of the first `limit` tokens are the same, before one is not."""
    differ = np.frombuffer(held, "=u4", limit) != np.frombuffer(wanted, "=u4", limit) if limit else np.zeros(0, bool)
    return int(differ.argmax()) if differ.any() else limit


def check_tokenizer(small: TextModel, large: TextModel) -> None:
    """InvalidRequestError, naming the models and the first difference, unless token ids mean the same to both."""
    ours, theirs = small.tokenizer.bytes, large.tokenizer.bytes
    named = f"speculate model:{small.name}: its tokenizer is not that of {large.name}"
    if len(ours.table) != len(theirs.table):
        raise InvalidRequestError(f"{named}: {len(ours.table)} tokens, {len(theirs.table)} there")
    for token, (a, b) in enumerate(zip(ours.table, theirs.table, strict=True)):
        if a != b:
            raise InvalidRequestError(f"{named}: token {token} is {a!r}, {b!r} there")
    if ours.specials != theirs.specials:
        raise InvalidRequestError(f"{named}: special tokens differ")


def _ignored(what: object) -> None:
    return None
