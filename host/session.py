"""Where a generation's rows live: a session opened for one answer, or a conversation that keeps its KV between turns.

A conversation reuses exactly the token prefix that the new prompt shares with the rows the stations hold, whatever the
caller changed in the history; the rest is cut by a new epoch. The last token of a prompt is always computed anew,
since its logits are what the answer begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from aeonflow.errors import CancelledCallError

from .decode import Decoder, Outbox
from .errors import SessionBusyError
from .generate import Generation
from .request import GenerateOptions, Prompt, Request
from .sequence import TokenSequence

if TYPE_CHECKING:
    from .engine import Engine

MIN_RESERVED_POSITIONS = 2048  # of a conversation, where the context allows it: growing means computing anew
IDLE_MARGIN = 0.9  # of the idle time after which stations forget a session


class OneAnswer:
    """A session for a single generation, closed at its end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def take(self, request: Request, outbox: Outbox) -> Decoder:
        """Open a session on every station and start."""
        engine, network = self._engine, self._engine.network
        sequence = await engine.open_sequence(request.num_positions)
        try:
            proposer = await engine.drafters.open_proposer(request)
        except BaseException:
            network.close_session(sequence)
            raise
        return engine.start(request, sequence, outbox, lambda: network.close_session(sequence), proposer)


class Session:
    """A conversation. `generate` as on the engine; `async with` or `close()` frees its KV at the stations.

    A text is added to `messages` as the user's next turn and the answer after it; chat messages replace the whole
    history; raw texts and token ids leave it alone. One generation at a time.
    """

    def __init__(self, engine: Engine) -> None:
        self.messages: list[dict[str, str]] = []
        self._engine = engine
        self._sequence: TokenSequence | None = None
        self._decoder: Decoder | None = None
        self._is_busy = False
        self._num_closed = 0
        self._used_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """The next answer; options as for `Engine.generate`. Raises SessionBusyError while another one runs."""
        if self._is_busy:
            raise SessionBusyError("this session is generating: wait for its answer, or cancel it")
        history = self._history(prompt, raw=bool(options.get("raw")))
        request = self._engine.make_request(history if history is not None else prompt, options)
        return self._engine.make_generation(_Turn(self, history), request)

    async def close(self) -> None:
        """Forget the conversation at every station; an answer under way is cancelled."""
        self._num_closed += 1
        if self._decoder is not None:
            self._decoder.cancel()
        self._forget()

    def _forget(self) -> None:
        """Free the rows at every station."""
        sequence, self._sequence = self._sequence, None
        if sequence is not None:
            self._engine.network.close_session(sequence)

    def _history(self, prompt: Prompt, *, raw: bool) -> list[dict[str, str]] | None:
        """The chat messages that the prompt stands for; None for a raw text or token ids."""
        if isinstance(prompt, str):
            return None if raw or not prompt else [*self.messages, {"role": "user", "content": prompt}]
        if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            history: list[Any] = [dict(message) if isinstance(message, Mapping) else message for message in prompt]
            return history  # checked with the request, as those of a generation without a session
        return None

    async def take(self, turn: _Turn, request: Request, outbox: Outbox) -> Decoder:
        """Bring the stations to the longest prefix they hold of this prompt, and start behind it."""
        if self._is_busy:
            raise SessionBusyError("this session is generating: wait for its answer, or cancel it")
        self._is_busy = True
        num_closed = self._num_closed
        try:
            sequence = await self._prepare(request)
            proposer = await self._engine.drafters.open_proposer(request)
            if self._num_closed != num_closed:  # meanwhile: what was opened or resumed is nobody's any more
                self._forget()
                if proposer is not None:
                    proposer.close()
                raise CancelledCallError("the session was closed before its answer began")
            decoder = self._engine.start(request, sequence, outbox, lambda: self._ended(turn, sequence), proposer)
        except BaseException:
            self._is_busy = False
            raise
        if not decoder.is_over:
            turn.decoder = self._decoder = decoder
        return decoder

    async def _prepare(self, request: Request) -> TokenSequence:
        engine, network = self._engine, self._engine.network
        sequence = self._sequence
        if sequence is not None:
            is_forgotten = engine.clock() - self._used_s > IDLE_MARGIN * network.idle_s
            if is_forgotten or sequence.is_closed or request.num_positions > sequence.max_positions:
                self._forget()
                sequence = None
        if sequence is None:
            reserve = max(request.num_positions, MIN_RESERVED_POSITIONS)
            sequence = await engine.open_sequence(min(reserve, max(engine.card.context_length, request.num_positions)))
            self._sequence = sequence
            return sequence
        await network.wait_ready(engine.rejoin_s)
        network.ways.lines.try_again()
        base = common_prefix(sequence.tokens[: sequence.length], request.prompt_ids[:-1])
        if base != len(sequence.tokens) and not sequence.can_restart(base):
            sequence.is_cut_too_deep = True
        if not network.is_intact(sequence) or sequence.is_cut_too_deep:
            await network.resume(sequence, base)
        elif base != len(sequence.tokens):
            sequence.restart(base)
        return sequence

    def _ended(self, turn: _Turn, sequence: TokenSequence) -> None:
        """A generation on this session is over, for whatever reason."""
        self._is_busy = False
        self._decoder = None
        self._used_s = self._engine.clock()
        if not sequence.is_tidy and not sequence.is_closed:
            self._engine.network.cancel(sequence)
        decoder = turn.decoder
        if turn.history is not None and decoder is not None and decoder.finish_reason is not None:
            self.messages = [*turn.history, {"role": "assistant", "content": "".join(decoder.texts)}]


class _Turn:
    """One generation of a session, with the history it answers."""

    def __init__(self, session: Session, history: list[dict[str, str]] | None) -> None:
        self.history = history
        self.decoder: Decoder | None = None
        self._session = session

    async def take(self, request: Request, outbox: Outbox) -> Decoder:
        return await self._session.take(self, request, outbox)


def common_prefix(held: Iterable[int], wanted: Iterable[int]) -> int:
    """How many leading tokens are the same."""
    count = 0
    for a, b in zip(held, wanted, strict=False):
        if a != b:
            break
        count += 1
    return count
