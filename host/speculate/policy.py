"""What to send next: the state machine of speculation, one for a generation. No IO and no clock.

Known are the true tokens up to position `known`; rows are sent up to the sequence's end, guesses from `known` + 1 on. A
pass is the known token and a run of guesses verified with it (lookup, a model in the host), or a single row, from which
a draft may grow whose guess starts the next row at once (Pair X). The truth is what plain decoding chooses from
canonical logits: where it differs from a guess a new epoch begins, which no station need be asked about. With nothing
to guess from, the rows and frames are those of plain decoding.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from aeonflow.errors import AeonflowError, GapError, PoisonedError
from aeonflow.tensors import Want

from ..sequence import DraftAnswer, TokenSequence
from .counts import Counts, Source
from .lookup import Lookup
from .sizes import RunSizer
from .switch import DraftSwitch
from .times import PassTimes

WINDOW = 3  # rows that may stand on guesses of drafts before the oldest is verified
MAX_RESTARTS = 3  # after errors that a new epoch mends, in a generation
MENDED = (GapError, PoisonedError)


class Proposer(Protocol):
    """A model in the host that guesses what follows."""

    def propose(self, tokens: array[int], count: int, done: Callable[[list[int], float], None]) -> None:
        """Call `done` with up to `count` guesses of what follows `tokens`, and the seconds it took; once, soon after
        or at once with none where it cannot. A new call gives an old one up."""
        ...

    def token_s(self) -> float:
        """Seconds that a guess takes."""
        ...

    def close(self) -> None:
        """The generation is over."""
        ...


class Means(NamedTuple):
    """Where guesses come from, each None where it is not used; `sizer` goes with `lookup` and `model`. `mode` is what
    results call it."""

    mode: str
    times: PassTimes
    sizer: RunSizer | None = None
    lookup: Lookup | None = None
    model: Proposer | None = None
    drafts: DraftSwitch | None = None


class _Flight(NamedTuple):
    """A pass under way: its first row and number of rows, when it left, whether nothing else was under way then."""

    first: int
    rows: int
    sent_s: float
    is_alone: bool
    kind: object  # of its guesses
    draft_s: float


class Speculation:
    """`begin` with the first token; then for each answer `accept` its tokens one by one, and `advance`."""

    def __init__(
        self,
        sequence: TokenSequence,
        means: Means,
        *,
        end: int,
        max_rows: int,
        pick: Callable[[DraftAnswer], int],
        clock: Callable[[], float],
    ) -> None:
        """Rows below `end` may be sent, at most `max_rows` in a pass. `pick` is the token chosen from a draft's logits,
        as plain decoding would choose it."""
        self.counts = Counts()
        self.known = 0
        self._sequence = sequence
        self._means = means
        self._end = end
        self._max_rows = max_rows
        self._pick = pick
        self._clock = clock
        self._truth = 0  # the token at `known`
        self._sources: dict[int, Source] = {}  # where the guess at a position came from
        self._flights: dict[int, _Flight] = {}  # by last position
        self._grown_s: float | None = None  # when the pass left that the live draft grows from
        self._held: int | None = None  # a draft's guess that waits for room in the window
        self._ticket = 0
        self._accepted = 0  # of the guesses of the answer being looked at
        self._taken = 0  # tokens of it
        self._token_s: float | None = None  # when the last token came, if from a pass of one row

    def use_pick(self, pick: Callable[[DraftAnswer], int]) -> None:
        """Another choice of a guess from what a draft's head said; only acceptance depends on it."""
        self._pick = pick

    def read(self, prompt: Sequence[int]) -> None:
        """The prompt's tokens, from which lookup may guess."""
        if self._means.lookup is not None:
            self._means.lookup.extend(prompt)

    def begin(self, token: int) -> None:
        """The first token is known: all rows of the prompt are sent and answered for."""
        self.known = len(self._sequence.tokens)
        self._learn_truth(token)
        self._token_s = self._clock()
        self._start(token)

    def accept(self, token: int) -> bool:
        """The next true token. May the row behind it be looked at: was it guessed, and sent, and is it the same?"""
        self.known += 1
        self._learn_truth(token)
        self._taken += 1
        if not self._is_sent:
            return False
        is_right = self._sequence.tokens[self.known] == token
        source = self._sources.pop(self.known, None)
        if source == "draft" and self._means.drafts is not None:
            self._means.drafts.learn_guess(is_right)
        if is_right and source is not None:
            self.counts.of(source).accepted += 1
            self._accepted += 1
        return is_right

    def advance(self, last: int) -> None:
        """All that is true of the answer up to position `last` was accepted, and the text goes on."""
        self.end_pass(last)
        if self._is_sent and self._sequence.tokens[self.known] == self._truth:
            if self._held is not None and len(self._sequence.tokens) - 1 - self.known < WINDOW:
                token, self._held = self._held, None
                self._start(token)
            return
        if self._is_sent:
            self._restart()
        elif self._grown_s is not None:
            self.counts.drafts.overtaken += 1
            if self._means.drafts is not None:
                self._means.drafts.learn_guess(False)
            self._restart()
        self._start(self._truth)

    def end_pass(self, last: int) -> None:
        """Count and time the pass that ended at `last`."""
        flight = self._flights.pop(last, None)
        taken, accepted, self._taken, self._accepted = self._taken, self._accepted, 0, 0
        self.counts.tokens += taken
        if flight is None:
            return
        seconds = self._clock() - flight.sent_s
        means = self._means
        if flight.is_alone:
            means.times.learn(flight.rows, seconds)
        if means.sizer is not None:
            means.sizer.book(flight.rows, taken, flight.draft_s)
            if flight.rows > 1:
                means.sizer.learn(flight.kind, flight.rows - 1, accepted)
        if means.drafts is not None:
            self._tell_switch(means.drafts, flight, seconds)

    def _tell_switch(self, drafts: DraftSwitch, flight: _Flight, seconds: float) -> None:
        now = self._clock()
        if flight.rows == 1:
            drafts.learn_pass(seconds)
            if self._token_s is not None:
                drafts.learn_token(now - self._token_s)
        self._token_s = now if flight.rows == 1 else None

    def drafted(self, answer: DraftAnswer) -> None:
        """A draft's head answered; what is not the live draft's is dropped."""
        counts, tokens = self.counts.drafts, self._sequence.tokens
        counts.results += 1
        if self._grown_s is None or answer.position != len(tokens) - 1:
            counts.late += 1
            return
        assert self._means.drafts is not None, "a draft grew"
        self._means.drafts.learn_draft(self._clock() - self._grown_s)
        self._grown_s = None
        try:
            token = self._pick(answer)
        except PoisonedError:  # no failure of a draft touches its session
            counts.late += 1
            return
        if len(tokens) - 1 - self.known >= WINDOW:
            counts.held += 1
            self._held = token
        else:
            self._start(token)

    def mend(self, error: AeonflowError) -> bool:
        """Passes under way are lost to an error. True when a new epoch was begun that goes on from what is known."""
        if not self.known or not isinstance(error, MENDED) or self.counts.errors >= MAX_RESTARTS:
            return False
        if self._means.sizer is None and self._means.drafts is None:
            return False
        self.counts.errors += 1
        if self.counts.errors == MAX_RESTARTS:
            self._means = Means(self._means.mode, self._means.times)  # plain decoding from here on
        self._restart()
        self._start(self._truth)
        return True

    def resume(self) -> None:
        """Rows were lost and computed anew, as many as are known: go on from there."""
        self._forget_guesses()
        self._start(self._truth)

    def to_json(self) -> dict[str, Any]:
        """The field `speculation` of a result."""
        found = self.counts.to_json(self._means.mode)
        if self._means.drafts is not None:
            found["switch"] = self._means.drafts.to_json()
        return found

    def stop(self) -> None:
        """Nothing will be sent any more, before `resume`."""
        self._ticket += 1

    @property
    def _is_sent(self) -> bool:
        return self.known < len(self._sequence.tokens)

    def _learn_truth(self, token: int) -> None:
        self._truth = token
        if self._means.lookup is not None:
            self._means.lookup.append(token)

    def _restart(self) -> None:
        """A new epoch: only what is known is true."""
        self.counts.restarts += 1
        self._sequence.restart(self.known)
        self._forget_guesses()

    def _forget_guesses(self) -> None:
        self._sources.clear()
        self._flights.clear()
        self._grown_s = self._held = None
        self._ticket += 1

    def _start(self, token: int) -> None:
        """Send the row of `token`, which is known or guessed, with guesses behind it where there are good ones."""
        sequence, means = self._sequence, self._means
        if means.sizer is None and means.drafts is None:  # plain: nothing is guessed, timed or looked up
            self.counts.passes += 1
            self.counts.rows += 1
            sequence.send((token,), Want.LAST)
            return
        at = len(sequence.tokens)
        is_guess = at > self.known
        if is_guess and (at >= self._end or sequence.starts_at_barrier()):
            return  # nothing is sent that may not be needed, nor past a barrier before all below is final
        room = sequence.room()
        most = min(self._end - at, self._max_rows, room or self._max_rows) - 1
        if means.sizer is not None and most > 0 and not means.times.wants_plain:
            if means.lookup is not None:
                tail = [*sequence.tokens[self.known + 1 :], token] if is_guess else []
                run = means.lookup.find(tail, min(most, means.sizer.longest))
                count = means.sizer.choose(run.gram, len(run.tokens), than_s=self._draft_token_s()) if run.tokens else 0
                if count:
                    self._send(token, run.tokens[:count], "lookup", run.gram)
                    return
            if means.model is not None and not is_guess:
                count = means.sizer.choose("model", most, means.model.token_s())
                if count:
                    self._ticket += 1
                    tokens = sequence.tokens[:]
                    tokens.append(token)
                    means.model.propose(tokens, count, partial(self._proposed, self._ticket, token))
                    return
        self._send(token, [], None, None)

    def _proposed(self, ticket: int, token: int, guesses: list[int], seconds: float) -> None:
        """The model in the host has guessed; what was asked for an older state of things is dropped."""
        if ticket == self._ticket and not self._sequence.is_closed:
            self._send(token, guesses, "model", "model", seconds)

    def _draft_token_s(self) -> float | None:
        drafts = self._means.drafts
        return drafts.token_s if drafts is not None else None

    def _send(self, token: int, guesses: list[int], source: Source | None, kind: object, draft_s: float = 0.0) -> None:
        sequence = self._sequence
        first = len(sequence.tokens)
        if first > self.known:
            self._sources[first] = "draft"
            self.counts.of("draft").drafted += 1
        if source is not None:
            self.counts.of(source).drafted += len(guesses)
            for offset in range(len(guesses)):
                self._sources[first + 1 + offset] = source
        grow = not guesses and self._may_grow(first)
        now = self._clock()
        rows = 1 + len(guesses)
        self.counts.passes += 1
        self.counts.rows += rows
        flight = _Flight(first, rows, now, sequence.oldest_in_flight is None, kind, draft_s)
        self._flights[first + rows - 1] = flight
        if grow:
            self._grown_s = now
        sequence.send((token, *guesses), Want.ALL if guesses else Want.LAST, settled=min(self.known, first), grow=grow)

    def _may_grow(self, first: int) -> bool:
        """Should a draft grow from the row at `first`?"""
        drafts = self._means.drafts
        if drafts is None or first + 1 >= self._end or not drafts.wants_drafts:
            return False
        if not drafts.is_permitted:
            self.counts.drafts.refused += 1
            return False
        return True
