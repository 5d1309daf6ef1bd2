"""The loop of `aeonflow chat`: read a line, stream the answer, keep the session."""

from __future__ import annotations

import itertools
import queue
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from aeonflow.errors import AeonflowError

from .background import EngineThread
from .engine import warn_of_drift
from .failure import one_line
from .groups import EngineOptions
from .loop import TerminatedError
from .output import note
from .progress import starting, summary
from .texts import read_line

if TYPE_CHECKING:
    from host.engine import Engine
    from host.generate import Generation
    from host.result import Result
    from host.session import Session

PROMPT = "> "
HELP = (
    "/reset  forget the conversation\n"
    "/help   this text\n"
    "/quit   leave (or Ctrl-D)\n"
    "Ctrl-C  stop the answer; the conversation goes on"
)


def converse(
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]],
    options: EngineOptions,
    *,
    system: str | None,
    keywords: dict[str, Any],
) -> None:
    """Until /quit or the end of stdin. Errors: those of starting the engine; a failed answer is shown, not raised."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    with ExitStack() as stack:
        with starting(options.what, may_compile=options.may_compile):
            thread = stack.enter_context(EngineThread(open_engine))
        warn_of_drift(thread.engine)
        conversation = Conversation(thread, system, keywords)
        for line in _lines():
            if line in ("/quit", "/exit"):
                return
            if line == "/help":
                note(HELP)
            elif line == "/reset":
                conversation.reset()
                note("the conversation is forgotten")
            elif line.startswith("/"):
                note(f"unknown command {line.split()[0]}; there are /help, /reset, /quit")
            elif line:
                conversation.answer(line)


class Conversation:
    """One session of the engine, used from the main thread."""

    def __init__(self, thread: EngineThread, system: str | None, keywords: dict[str, Any]) -> None:
        self._thread = thread
        self._system = system
        self._keywords = keywords
        self._session = self._new_session()

    def reset(self) -> None:
        """Forget history and KV."""
        self._thread.wait(self._session.close())
        self._session = self._new_session()

    def answer(self, text: str) -> None:
        """Stream the answer to stdout. Ctrl-C ends it; what was said stays in the history."""
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        generation: Generation | None = None

        async def generate() -> Result:
            nonlocal generation
            try:
                generation = self._session.generate(text, **self._keywords)
                async for chunk in generation:
                    pieces.put(chunk.text)
                return generation.result
            finally:
                pieces.put(None)

        def cancel() -> None:
            if generation is not None:
                generation.cancel()

        future = self._thread.submit(generate())
        begun = True
        try:
            begun = _print_until_none(pieces)
        except KeyboardInterrupt:
            self._thread.call(cancel)
            _print_until_none(pieces)
        except BaseException:
            self._thread.call(cancel)
            raise
        try:
            result = future.result()
        except AeonflowError as exc:
            if begun:  # the message does not follow half an answer on its line
                sys.stdout.write("\n")
                sys.stdout.flush()
            note(f"error: {one_line(exc)}")
        else:
            sys.stdout.write("\n")
            sys.stdout.flush()
            note(summary(result))

    def _new_session(self) -> Session:
        session = self._thread.engine.session()
        if self._system is not None:
            session.messages.append({"role": "system", "content": self._system})
        return session


def _print_until_none(pieces: queue.SimpleQueue[str | None]) -> bool:
    """Whether there was anything to print."""
    begun = False
    while (piece := pieces.get()) is not None:
        begun = begun or bool(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()
    return begun


def _lines() -> Iterator[str]:
    """Messages of the user: prompted for on a terminal, the lines of stdin elsewhere. Ctrl-C drops the line."""
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  line editing and history for input()
        note("/help lists the commands, Ctrl-D leaves")
    for number in itertools.count(1):
        try:
            line = input(PROMPT) if is_terminal else read_line(number)
        except EOFError:
            note("")  # the shell's own prompt begins a line
            return
        except KeyboardInterrupt:
            note("\n(/quit or Ctrl-D leaves)")
            continue
        if line is None:
            return
        yield line.strip()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminatedError(signal.Signals(number))
