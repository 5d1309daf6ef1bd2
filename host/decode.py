"""The step loop of one generation: prefill chunks out, an answer in, its tokens chosen, the next rows out.

Runs in the readers' callbacks, synchronously: between the arrival of logits and the departure of the next rows lie the
choice of the tokens and nothing else; hashing and text come after. Which rows go out is `speculate.policy`'s business;
what is emitted is what plain decoding would emit, ended where it would end. What comes out goes to an `Outbox`, where
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

from .errors import EngineClosedError
from .prefill import Prefill, Window
from .request import Request
from .result import Chunk, FinishReason, TokenLogprob
from .sampling import Choice, choose, choose_among
from .sequence import F32, Answer, Detour, DraftAnswer, TokenSequence
from .speculate.policy import Means, Speculation
from .text import TextStream

MAX_RESUMES = 4  # of a generation from tokens: stations that lose rows again and again are broken


def _is_final(error: AeonflowError) -> bool:
    return False


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
    """One generation under way. `cap()` bounds the next prefill chunk while others decode (None: no bound); `means`
    are where guesses come from, at most `max_rows` rows a pass. `mend` is asked when passes have failed: True where
    stations are being asked what they hold of the session, to go on from there; then `resumed` will be called, or
    `fail`.

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
        means: Means,
        max_rows: int,
        cap: Callable[[], int | None],
        mend: Callable[[AeonflowError], bool] = _is_final,
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
        self.hops = 0
        self.decoded_bytes = 0  # of the host's frames, from the second token on
        self.detour: Detour | None = None  # once it is over: the rows that went without the seeds that were asked for
        self.speculation = Speculation(
            sequence, means, end=request.num_positions, max_rows=max_rows, pick=self._pick, clock=clock
        )
        self._stream = stream
        self._outbox = outbox
        self._cap = cap
        self._mend = mend
        self._num_resumes = 0
        self._is_resuming = False
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
        prompt = self.request.prompt_ids
        self.num_prefilled = len(prompt) - len(self.sequence.tokens)
        self.sequence.on_answer = self._answered
        self.sequence.on_error = self._failed
        self.sequence.on_draft = self._drafted
        self._begin_prefill(window)
        self.speculation.read(prompt)

    def resumed(self, window: Window) -> None:
        """The stations hold the rows of the sequence, and no others: go on from tokens, to the same answer."""
        self._is_resuming = False
        if self.is_over:
            return
        try:
            if self.token_ids and len(self._fed) == len(self.sequence.tokens):
                self.speculation.resume()
            else:
                self._begin_prefill(window)
        except Exception as error:  # as in `_answered`
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it is over."""
        if not self.is_over:
            self._end(error)

    def cancel(self) -> None:
        """End where it is; what was emitted stands."""
        if not self.is_over:
            self.finish_reason = "cancelled"
            self._end()

    def _end(self, error: BaseException | None = None) -> None:
        """Rows beyond what plain decoding would have fed are taken back, then everybody is told."""
        self.speculation.stop()
        self.detour = self.sequence.detour
        if self.token_ids:
            self.sequence.reject(len(self.request.prompt_ids) + len(self.token_ids) - 1)
        self._outbox.end(error)
        self._on_end()

    @property
    def _fed(self) -> tuple[int, ...]:
        """The tokens whose rows plain decoding has fed so far: the newest one's not."""
        return (*self.request.prompt_ids, *self.token_ids[:-1])

    def _begin_prefill(self, window: Window) -> None:
        rows = self._fed
        self._prefill = Prefill(len(self.sequence.tokens), len(rows), window)
        self._send_chunks(self._prefill, rows)

    def _send_chunks(self, prefill: Prefill, ids: tuple[int, ...]) -> None:
        """Where a token is known already no logits are wanted: it was chosen from them."""
        last = Want.NONE if self.token_ids else Want.LAST
        while rows := prefill.next(self._chunk_cap()):
            self.sequence.send(ids[prefill.at - rows : prefill.at], last if prefill.is_sent else Want.NONE)

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
                    self._acknowledged(self._prefill)
                    return
                self._prefill = None
            self._step(answer)
        except Exception as error:  # a bug here must reach the caller, not the reader of the link
            self.fail(error)

    def _acknowledged(self, prefill: Prefill) -> None:
        if prefill.is_sent and not prefill.unanswered:
            self._prefill = None
            self.speculation.resume()
        else:
            self._send_chunks(prefill, self._fed)

    def _failed(self, error: AeonflowError) -> None:
        """The passes under way are lost; a new epoch mends what a guess may have broken, tokens what stations lost."""
        try:
            if self.is_over:
                return
            if self._is_resuming and not isinstance(error, EngineClosedError):  # other passes of what is being mended
                return
            if self._num_resumes < MAX_RESUMES and self._mend(error):
                self._num_resumes += 1
                self._is_resuming = True
                self._prefill = None
                self.speculation.stop()
            elif self._prefill is not None or not self.speculation.mend(error):  # rows that are known are not there
                self.fail(error)
        except Exception as worse:  # as in `_answered`
            self.fail(worse)

    def _drafted(self, answer: DraftAnswer) -> None:
        try:
            if not self.is_over and not self._is_resuming:
                self.speculation.drafted(answer)
        except Exception as error:  # as in `_answered`
            self.fail(error)

    def _pick(self, draft: DraftAnswer) -> int:
        return choose_among(draft.ids, draft.logits, self.request.sampling, draft.position + 1)

    def _step(self, answer: Answer) -> None:
        """Choose the tokens that the answer makes true, send what comes next, then hash and spell them."""
        if answer.logits is None:
            raise AeonflowError(f"position {answer.last} was acknowledged where logits were asked for")
        num_known = len(self.token_ids)
        chosen, reason = self._choose(answer.logits, answer.last) if num_known else self._choose_first(answer)
        self.last_token_s = self._clock()
        self.hops = answer.hops
        if num_known:
            self.decoded_bytes += answer.num_bytes
        else:
            self.first_token_s = self.last_token_s  # and its pass carried the prompt
        rows = answer.logits if num_known else answer.logits[-1:]
        is_spelled_first = len(chosen) > 1 and bool(self.request.stops)  # a stop string may end it before the last one
        if is_spelled_first:
            self._emit_all(rows, chosen, reason)
        if reason is not None or self.is_over:
            self.speculation.end_pass(answer.last)
        elif num_known:
            self.speculation.advance(answer.last)
        else:
            self.speculation.begin(chosen[0].token)
        if not is_spelled_first:
            self._emit_all(rows, chosen, reason)

    def _choose_first(self, answer: Answer) -> tuple[list[Choice], FinishReason | None]:
        assert answer.logits is not None
        choice = self._choose_row(answer.logits[-1], answer.last + 1)
        return [choice], self._reason(choice.token, 1)

    def _choose(self, rows: F32, last: int) -> tuple[list[Choice], FinishReason | None]:
        """The tokens behind rows of which the newest stands at `last`, as far as the rows were the true ones."""
        chosen: list[Choice] = []
        first = last + 1 - len(rows)
        for index, row in enumerate(rows):
            choice = self._choose_row(row, first + index + 1)
            chosen.append(choice)
            is_right = self.speculation.accept(choice.token)
            reason = self._reason(choice.token, len(self.token_ids) + len(chosen))
            if reason is not None or not is_right:
                return chosen, reason
        return chosen, None

    def _choose_row(self, row: F32, position: int) -> Choice:
        trace = self.sequence.trace
        began_s = trace.clock() if trace is not None else 0.0
        choice = choose(row, self.request.sampling, position)
        if trace is not None:
            self.sequence.record_choice(began_s, position)
        return choice

    def _reason(self, token: int, count: int) -> FinishReason | None:
        """Why the answer ends with `token`, its `count`th, for all that is known before it is spelled."""
        if token in self.request.eos_ids:
            return "stop"
        return "length" if count == self.request.max_tokens else None

    def _emit_all(self, rows: F32, chosen: list[Choice], reason: FinishReason | None) -> None:
        """Hash and spell; `reason` is the last one's. What was chosen beyond a stop string is not said."""
        for index, choice in enumerate(chosen):
            if self._hasher is not None:
                self._hasher.update(np.ascontiguousarray(rows[index], "<f4").data.cast("B"))
            self._emit(choice, reason if index == len(chosen) - 1 else None)
            if self.is_over:
                return

    def _emit(self, choice: Choice, reason: FinishReason | None) -> None:
        text = ""
        self.token_ids.append(choice.token)
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
            self._end()
