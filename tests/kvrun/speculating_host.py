"""A host that sends rows it does not believe in: passes of several rows, wrong ones among them, cut by new epochs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from aeonflow.errors import AeonflowError
from aeonflow.tensors import Want
from host import Engine
from host.sequence import Answer, TokenSequence

from .fleets import Outcome

MAX_ROWS = 9
PATIENCE_S = 60.0


class Asked:
    """A sequence whose passes are awaited one by one."""

    def __init__(self, sequence: TokenSequence) -> None:
        self.sequence = sequence
        self._arrived: asyncio.Future[Answer] | None = None
        sequence.on_answer = self._answered
        sequence.on_error = self._failed

    async def send(self, ids: Sequence[int], want: Want, *, settled: int | None = None) -> Answer:
        self._arrived = asyncio.get_running_loop().create_future()
        self.sequence.send(ids, want, settled=settled)
        async with asyncio.timeout(PATIENCE_S):
            return await self._arrived

    async def prefill(self, ids: Sequence[int], chunk: int) -> Answer:
        """The rows of `ids` that are not sent yet, in chunks that end at barriers; the last row's answer."""
        while True:
            at = len(self.sequence.tokens)
            rows = ids[at : at + min(chunk, self.sequence.room() or chunk)]
            answer = await self.send(rows, Want.LAST)
            if at + len(rows) == len(ids):
                return answer

    def _answered(self, answer: Answer) -> None:
        assert self._arrived is not None
        self._arrived.set_result(answer)

    def _failed(self, error: AeonflowError) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_exception(error)


async def speculated(engine: Engine, prompt: list[int], truth: Sequence[int], *, chunk: int, seed: int) -> Outcome:
    """Generate as many tokens as `truth` has. Drafts are its tokens or others at random; what plain decoding would not
    choose is cut by a new epoch."""
    rng = random.Random(seed)
    sequence = await engine.network.open(len(prompt) + len(truth) + MAX_ROWS)
    host, digest = Asked(sequence), blake3()
    answer = await host.prefill(prompt, chunk)
    assert answer.logits is not None
    row, tokens = answer.logits[-1], []
    epochs = 0
    try:
        while True:
            digest.update(np.ascontiguousarray(row, "<f4").tobytes())
            tokens.append(int(row.argmax()))
            if len(tokens) == len(truth):
                assert epochs > 5, "no draft was ever wrong"
                return Outcome(tuple(tokens), digest.hexdigest())
            first = len(sequence.tokens)
            drafts = [t if rng.random() < 0.7 else rng.randrange(512) for t in truth[len(tokens) :]]
            rows = min(rng.randint(1, MAX_ROWS), sequence.room() or MAX_ROWS)
            ids = [tokens[-1], *drafts][:rows]
            logits = (await host.send(ids, Want.ALL, settled=first)).logits
            assert logits is not None
            accepted = 1
            while accepted < len(ids) and len(tokens) + 1 < len(truth):
                chosen = int(logits[accepted - 1].argmax())
                if chosen != ids[accepted]:
                    break
                digest.update(np.ascontiguousarray(logits[accepted - 1], "<f4").tobytes())
                tokens.append(chosen)
                accepted += 1
            if accepted < len(ids):
                sequence.restart(first + accepted)
                epochs += 1
            row = logits[accepted - 1]
    finally:
        engine.network.close_session(sequence)
