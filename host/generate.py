"""A generation as its caller sees it: an asynchronous iterator of chunks, and a result when it is over.

Structured: closing the iterator, cancelling the task that iterates, or dropping the object cancels the generation at
every station at once. Nothing happens before the first chunk is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, Self

import msgspec

from .decode import Decoder, Outbox
from .errors import HostError
from .pairx import NO_SEEDING, Seeding
from .request import Request
from .result import Chunk, Exactness, FinishReason, Result, Timings, TokenLogprob, Usage
from .speculate.counts import SourceCounts


class Setting(msgspec.Struct, frozen=True):
    """How an engine runs: the fields of a result that do not depend on the request.

    `token_bytes`: bytes of frames that one decoded token moves, by the plan; `interior_bytes`: those of them that go
    from station to station, which the host cannot count.
    """

    plan: str
    route: str
    kernels: str
    transport: str
    exactness: Exactness
    kv: dict[str, Any]
    token_bytes: int
    interior_bytes: int
    seeding: Seeding = NO_SEEDING


class Seat(Protocol):
    """Where a generation finds its rows: a session of its own, or one that lives on between turns."""

    async def take(self, request: Request, outbox: Outbox) -> Decoder:
        """Open or resume a session and start the generation on it. Whatever fails leaves nothing behind."""
        ...


class Generation:
    """One generation. Iterate it, or `await generation.collect()`; afterwards `result` is there.

    Raises what ended it: `StationLostError`, `DeadlineError`, `PoisonedError`, … Iterated by one task at a time.
    """

    def __init__(
        self, seat: Seat, request: Request, setting: Callable[[], Setting], clock: Callable[[], float]
    ) -> None:
        self.request = request
        self._seat = seat
        self._setting = setting
        self._clock = clock
        self._outbox = Outbox()
        self._decoder: Decoder | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_cancelled = False
        self._started_s = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        outbox = self._outbox
        try:
            if self._loop is None and not self._is_cancelled:
                await self._begin()
            while not outbox.chunks:
                if outbox.error is not None:
                    raise outbox.error
                if outbox.is_over:
                    raise StopAsyncIteration
                await outbox.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return outbox.chunks.popleft()

    async def collect(self) -> Result:
        """Run to the end and return the result; a cancellation of the caller cancels the generation."""
        async for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """Stop at every station, at once. What was emitted stands; `result` says "cancelled". Idempotent."""
        self._is_cancelled = True
        if self._decoder is not None:
            self._decoder.cancel()
        elif self._loop is None:
            self._outbox.end()  # never begun; one that is just beginning cancels itself when it has begun

    async def aclose(self) -> None:
        """What `async with contextlib.aclosing(generation)` calls: `cancel`."""
        self.cancel()

    def __del__(self) -> None:
        decoder, loop = self._decoder, self._loop
        if decoder is not None and loop is not None and not decoder.is_over and not loop.is_closed():
            loop.call_soon_threadsafe(decoder.cancel)

    @property
    def result(self) -> Result:
        """The whole answer, once it is over: finished or cancelled. Raises the error that ended it."""
        if self._outbox.error is not None:
            raise self._outbox.error
        if not self._outbox.is_over:
            raise HostError("the generation is not over: iterate it to its end or cancel it first")
        return self._make_result()

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started_s = self._clock()
        try:
            self._decoder = await self._seat.take(self.request, self._outbox)
        except BaseException as error:
            if not self._outbox.is_over:
                self._outbox.end(None if isinstance(error, asyncio.CancelledError) else error)
            raise
        if self._is_cancelled:
            self._decoder.cancel()

    def _make_result(self) -> Result:
        decoder, request, setting = self._decoder, self.request, self._setting()
        prompt = request.prompt_ids
        token_ids: tuple[int, ...] = ()
        logprobs: tuple[TokenLogprob, ...] = ()
        text, reason, logits_hash = "", FINISH_CANCELLED, None
        hops = num_bytes = cached = 0
        interior_bytes = setting.interior_bytes
        speculation: dict[str, Any] = {}
        drafts, detour = SourceCounts(), decoder.detour if decoder is not None else None
        num_rows = 0  # that were asked to go with seeds, those that the session held already counted too
        if decoder is not None:
            token_ids, logprobs = tuple(decoder.token_ids), tuple(decoder.logprobs)
            text, logits_hash = "".join(decoder.texts), decoder.logits_hash
            reason = decoder.finish_reason or FINISH_CANCELLED
            hops = decoder.hops
            cached = len(prompt) - decoder.num_prefilled
            num_rows = len(prompt) + len(token_ids) - 1
            if detour is not None:
                num_rows = min(num_rows, detour.first)
            speculation = decoder.speculation.to_json()
            drafts = decoder.speculation.counts.sources.get("draft", drafts)
            if len(token_ids) > 1:
                num_bytes = decoder.decoded_bytes // (len(token_ids) - 1)
                interior_bytes = interior_bytes * speculation["rows"] // (len(token_ids) - 1)
        return Result(
            text=text,
            token_ids=token_ids,
            prompt_ids=prompt,
            finish_reason=reason,
            usage=Usage(len(prompt), len(token_ids), cached),
            timings=self._timings(decoder),
            plan=setting.plan,
            route=setting.route,
            kernels=setting.kernels,
            transport=setting.transport,
            exactness=setting.exactness,
            kv=setting.kv,
            hops_per_token=hops,
            bytes_per_token=num_bytes + interior_bytes if num_bytes else setting.token_bytes,
            speculation=speculation,
            pair_x=setting.seeding.told(drafts, max(0, num_rows - cached), detour.why if detour else ""),
            logits_hash=logits_hash,
            logprobs=logprobs if request.sampling.logprobs is not None else None,
        )

    def _timings(self, decoder: Decoder | None) -> Timings:
        if decoder is None or not decoder.token_ids:
            return Timings(0.0, 0.0, 0.0, max(0.0, self._clock() - self._started_s) if self._started_s else 0.0)
        prefill_s = decoder.first_token_s - decoder.started_s
        decode_s = decoder.last_token_s - decoder.first_token_s
        return Timings(
            ttft_s=decoder.first_token_s - self._started_s,
            prefill_tok_s=decoder.num_prefilled / prefill_s if prefill_s > 0 else 0.0,
            decode_tok_s=(len(decoder.token_ids) - 1) / decode_s if decode_s > 0 else 0.0,
            total_s=decoder.last_token_s - self._started_s,
        )


FINISH_CANCELLED: FinishReason = "cancelled"
