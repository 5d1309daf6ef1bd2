"""The step loop of one generation: prefill chunks out, an answer in, a token chosen, the next row out.

Runs in the readers' callbacks, synchronously: between the arrival of logits and the departure of the next row lie the
choice of the token and nothing else; hashing and text come after. What it produces goes to an `Outbox`, where
whoever iterates the generation picks it up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import numpy as np
from blake3 import blake3

from aeonflow.errors import AeonflowError
from aeonflow.tensors import Want

from .prefill import Prefill, Window
from .request import Request
from .result import Chunk, FinishReason, TokenLogprob
from .sampling import Choice, choose
from .sequence import Answer, TokenSequence
from .text import TextStream


class Outbox:
    """Chunks between the step loop and the one who iterates; at most one token's chunk each, so max_tokens bound it."""

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.error: BaseException | None = None
        self.is_over = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more will come."""
        self.is_over, self.error = True, error
        self._wake()

    async def wait(self) -> None:
        """Until there is a chunk or the end."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Decoder:
    """One generation under way. `cap()` bounds the next prefill chunk while others decode (None: no bound).

    `on_end` is called once: when the last token was chosen, at an error, at a cancellation. Passes may still be under
    way then; whoever owns the sequence closes it or begins a new epoch.
    """

    def __init__(
        self,
        request: Request,
        sequence: TokenSequence,
        stream: TextStream,
        outbox: Outbox,
        *,
        cap: Callable[[], int | None],
        clock: Callable[[], float],
        on_end: Callable[[], None],
    ) -> None:
        self.request = request
        self.sequence = sequence
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.num_prefilled = 0
        self.started_s = clock()
        self.first_token_s = self.last_token_s = 0.0
        self.hops = self.num_bytes = 0
        self._stream = stream
        self._outbox = outbox
        self._cap = cap
        self._clock = clock
        self._on_end = on_end
        self._hasher = blake3() if request.wants_hash else None
        self._prefill: Prefill | None = None

    @property
    def is_over(self) -> bool:
        return self._outbox.is_over

    @property
    def is_decoding(self) -> bool:
        """Is a token of this generation due next, that a prefill of another would hold up?"""
        return bool(self.token_ids) and not self.is_over

    @property
    def logits_hash(self) -> str | None:
        """blake3 over the rows that the emitted tokens were chosen from, in order; None when not asked for."""
        return self._hasher.hexdigest() if self._hasher is not None else None

    def start(self, window: Window) -> None:
        """Send the first chunks: the rows of the prompt that the sequence does not hold yet."""
        prompt, held = self.request.prompt_ids, len(self.sequence.tokens)
        self.num_prefilled = len(prompt) - held
        self._prefill = Prefill(held, len(prompt), window)
        self.sequence.on_answer = self._answered
        self.sequence.on_error = self.fail
        self._send_chunks(self._prefill)

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it is over."""
        if not self.is_over:
            self._outbox.end(error)
            self._on_end()

    def cancel(self) -> None:
        """End where it is; what was emitted stands."""
        if not self.is_over:
            self.finish_reason = "cancelled"
            self._outbox.end()
            self._on_end()

    def _send_chunks(self, prefill: Prefill) -> None:
        while rows := prefill.next(self._chunk_cap()):
            ids = self.request.prompt_ids[prefill.at - rows : prefill.at]
            self.sequence.send(ids, Want.LAST if prefill.is_sent else Want.NONE)

    def _chunk_cap(self) -> int | None:
        """The most rows of the next chunk: what other generations leave, up to the next state barrier."""
        caps = [cap for cap in (self._cap(), self.sequence.room()) if cap is not None]
        return min(caps, default=None)

    def _answered(self, answer: Answer) -> None:
        if self.is_over:
            return
        try:
            if self._prefill is not None:
                self._prefill.answered()
                if answer.logits is None:
                    self._send_chunks(self._prefill)
                    return
                self._prefill = None
            self._step(answer)
        except Exception as error:  # a bug here must reach the caller, not the reader of the link
            self.fail(error)

    def _step(self, answer: Answer) -> None:
        """Choose a token, send it on its way, then hash and spell it."""
        if answer.logits is None:
            raise AeonflowError(f"position {answer.last} was acknowledged where logits were asked for")
        row = answer.logits[-1]
        trace = self.sequence.trace
        began_s = trace.clock() if trace is not None else 0.0
        choice = choose(row, self.request.sampling, answer.last + 1)
        if trace is not None:
            self.sequence.record_choice(began_s, answer.last + 1)
        token = choice.token
        self.token_ids.append(token)
        self.last_token_s = self._clock()
        if len(self.token_ids) == 1:
            self.first_token_s = self.last_token_s
        self.hops = answer.hops
        if len(self.token_ids) > 1:  # the first token's pass carried several rows
            self.num_bytes = answer.num_bytes
        reason: FinishReason | None = None
        if token in self.request.eos_ids:
            reason = "stop"
        elif len(self.token_ids) == self.request.max_tokens:
            reason = "length"
        else:
            self.sequence.send((token,), Want.LAST)
        if self._hasher is not None:
            self._hasher.update(np.ascontiguousarray(row, "<f4").data.cast("B"))
        self._emit(choice, reason)

    def _emit(self, choice: Choice, reason: FinishReason | None) -> None:
        text = ""
        if reason is None or choice.token not in self.request.eos_ids:
            text, is_stopped = self._stream.push(choice.token)
            if is_stopped:
                reason = "stop"
        if reason is not None:
            rest, is_stopped = self._stream.flush()
            text += rest
            if is_stopped:
                reason = "stop"
        logprobs: tuple[TokenLogprob, ...] = ()
        if choice.logprobs is not None:
            logprobs = (TokenLogprob(choice.token, choice.logprobs.chosen, choice.logprobs.top),)
            self.logprobs.extend(logprobs)
        self.texts.append(text)
        self._outbox.put(Chunk(text, (choice.token,), reason, logprobs))
        if reason is not None:
            self.finish_reason = reason
            self._outbox.end()
            self._on_end()
