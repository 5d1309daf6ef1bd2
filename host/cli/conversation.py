"""The loop of `aeonflow chat`: read a line, stream the answer, keep the session."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from .background import EngineThread
from .output import note
from .progress import starting

if TYPE_CHECKING:
    from host.engine import Engine

PROMPT = "> "
HELP = (
    "/reset  forget the conversation\n"
    "/help   this text\n"
    "/quit   leave (or Ctrl-D)\n"
    "Ctrl-C  stop the answer; the conversation goes on"
)


def converse(
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]],
    what: str,
    *,
    system: str | None,
    keywords: dict[str, Any],
) -> None:
    """Until /quit or the end of stdin. Errors: those of starting the engine; a failed answer is shown, not raised."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    thread = EngineThread(open_engine)
    with starting(what):
        thread.__enter__()
    with _left(thread):
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
