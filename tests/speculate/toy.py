"""A toy chain and generations on it: each logits row is a hash of all tokens before, so one wrong row changes the rest.

The chain keeps its cache by the rules of epochs. A seeded adversary decides when answers arrive, which drafts come, how
late, and what they say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from aeonflow.errors import AeonflowError
from aeonflow.kv_options import Barrier
from aeonflow.tensors import Want
from host.decode import Decoder, Outbox
from host.prefill import Window
from host.request import Request
from host.sampling import SamplingParams
from host.sequence import Answer, DraftAnswer, Pass, TokenSequence
from host.speculate.policy import WINDOW, Means
from host.text.model import TextStep
from host.text.stop import StopMatcher

VOCAB = 7
LETTERS = "abcdefg"


def toy_logits(tokens: Sequence[int], vocab: int = VOCAB) -> Any:
    """f32 [vocab], a function of all tokens; the newest two weigh most, so that texts repeat themselves."""
    return _toy_logits(tuple(tokens), vocab)


@lru_cache(maxsize=4096)
def _toy_logits(tokens: tuple[int, ...], vocab: int) -> Any:
    near = np.random.default_rng([*tokens[-2:], 99]).normal(size=vocab)
    far = np.random.default_rng(list(tokens)).normal(size=vocab)
    return (3.0 * near + 0.8 * far).astype(np.float32)


class ToyChain:
    """A passage. `pending` are the answers and drafts under way, in no particular order but for canonical ones."""

    def __init__(self, rng: random.Random, *, hit_rate: float = 0.8, loss: float = 0.1, vocab: int = VOCAB) -> None:
        self.cache: list[int] = []
        self.epoch, self.base = 0, 0
        self.answers: list[tuple[int, Answer]] = []  # epoch, answer: in order
        self.drafts: list[tuple[int, DraftAnswer]] = []
        self.passes: list[Pass] = []
        self.fail_next: AeonflowError | None = None
        self._rng = rng
        self._hit_rate, self._loss, self._vocab = hit_rate, loss, vocab
        self.live: set[tuple[int, int]] = set()

    def send(self, sequence: TokenSequence, one: Pass) -> None:
        self.passes.append(one)
        assert one.settled <= one.first
        if one.epoch > self.epoch:
            assert one.base <= len(self.cache), "a new epoch keeps rows that nobody has"
            assert self.cache[: one.base] == list(sequence.tokens[: one.base])
            self.epoch, self.base = one.epoch, one.base
            del self.cache[one.base :]
            self.live.clear()
        assert (one.epoch, one.base) == (self.epoch, self.base)
        assert one.first == len(self.cache), f"gap: have {len(self.cache)}, got {one.first}"
        ids = np.frombuffer(one.ids, "<u4").tolist()
        rows = []
        for token in ids:
            self.cache.append(token)
            rows.append(toy_logits(self.cache, self._vocab))
        logits = None if one.want == Want.NONE else np.stack(rows if one.want == Want.ALL else rows[-1:])
        self.answers.append((one.epoch, Answer(one.last, logits, 3, 100)))
        if one.grow:
            assert one.rows == 1
            self._grow(one.epoch, one.first, rows[-1])

    def _grow(self, epoch: int, position: int, row: Any) -> None:
        assert not self.live, "one draft at a time"
        self.live.add((epoch, position))
        if self._rng.random() < self._loss:
            return
        said = row if self._rng.random() < self._hit_rate else np.roll(row, self._rng.randrange(1, self._vocab))
        order = np.lexsort((np.arange(self._vocab), -said))
        draft = DraftAnswer(position, order.astype(np.uint32), said[order])
        self.drafts.extend([(epoch, draft)] * (2 if self._rng.random() < 0.1 else 1))

    def step(self, sequence: TokenSequence) -> bool:
        """Deliver one thing that is under way; False when nothing is."""
        if not self.answers and not self.drafts:
            return False
        if self.drafts and (not self.answers or self._rng.random() < 0.6):
            epoch, draft = self.drafts.pop(self._rng.randrange(len(self.drafts)))
            if epoch == sequence.epoch:
                self.live.discard((epoch, draft.position))
                sequence.on_draft(draft)
            return True
        epoch, answer = self.answers.pop(0)
        if epoch == sequence.epoch:
            if self.fail_next is not None:
                error, self.fail_next = self.fail_next, None
                self.answers.clear()
                sequence.failed(error)
            else:
                sequence.answered(answer)
        return True


class Letters:
    """Text of a toy generation: a letter a token."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._matcher = StopMatcher(stops)

    def push(self, token_id: int) -> TextStep:
        text = self._matcher.push(LETTERS[token_id % len(LETTERS)])
        return TextStep(text, self._matcher.is_stopped)

    def flush(self) -> TextStep:
        text = "" if self._matcher.is_stopped else self._matcher.flush()
        return TextStep(text, self._matcher.is_stopped)


class Told(NamedTuple):
    """All that a caller can see of a generation, and the rows that a next turn would reuse."""

    tokens: tuple[int, ...]
    text: str
    reason: str | None
    logits_hash: str | None
    held: tuple[int, ...]


class Tick:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def run_toy(
    chain: ToyChain,
    means: Means,
    *,
    prompt: Sequence[int] = (1, 2, 3, 1, 2),
    max_tokens: int = 40,
    sampling: SamplingParams | None = None,
    stops: Sequence[str] = (),
    eos: Sequence[int] = (),
    barriers: Sequence[Barrier] = (),
    max_rows: int = 9,
    watch: Callable[[Decoder], None] | None = None,
) -> tuple[Told, Decoder]:
    """A whole generation; raises the error that ended it."""
    request = Request(
        tuple(prompt), max_tokens, sampling or SamplingParams(), tuple(stops), frozenset(eos), False, True, None
    )
    clock = Tick()
    sequence = TokenSequence(1, chain, clock)
    sequence.barriers = tuple(barriers)
    outbox = Outbox()
    stream: Any = Letters(stops)
    decoder = Decoder(
        request, sequence, stream, outbox, means=means, max_rows=max_rows, cap=lambda: None, clock=clock,
        on_end=lambda: None,
    )  # fmt: skip
    decoder.start(Window(3, 2))
    steps = 0
    while not decoder.is_over:
        steps += 1
        assert steps < 100 * (max_tokens + len(prompt)), "it does not end"
        assert chain.step(sequence), "nothing is under way and the generation waits"
        if watch is not None:
            watch(decoder)
        ahead = len(sequence.tokens) - 1 - decoder.speculation.known
        assert decoder.is_over or not decoder.token_ids or ahead <= WINDOW + max_rows
    if outbox.error is not None:
        raise outbox.error
    told = Told(
        tuple(decoder.token_ids), "".join(decoder.texts), decoder.finish_reason, decoder.logits_hash,
        tuple(sequence.tokens[: sequence.length]),
    )  # fmt: skip
    return told, decoder
