"""From exceptions to exit codes: one line `error: …` on stderr, never a traceback.

0 done · 1 it failed · 2 the command cannot be meant like this · 130 stopped by Ctrl-C · 141 the reader of the pipe
left · 143 ended by SIGTERM.
`AEONFLOW_DEBUG=1` shows the traceback before the line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

# Typer carries its own copy of click since 0.16; this names the class of either.
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class UsageError(Exception):
    """Options that contradict each other or are missing: exit code 2."""


class CommandFailedError(Exception):
    """The command failed and the message is all there is to say: exit code 1."""


def run_app(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Nothing escapes."""
    from .app import app

    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="aeonflow", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # Typer turns KeyboardInterrupt into its exit code
            _say("interrupted", prefix="")
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit):  # SystemExit is how Typer reports a pipe that was closed
        _forget_stdout()
        return PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted", prefix="")
        return INTERRUPTED
    except typer.Exit as exc:
        return exc.exit_code
    except _ClickError as exc:
        if exc.format_message():  # empty: a command group without a command, whose help was printed
            _say(_usage_message(exc))
        return USAGE
    except BaseExceptionGroup as group:
        return _report(_leaf(group))
    except Exception as exc:
        return _report(exc)


def _report(exc: BaseException) -> int:
    from .loop import TerminatedError

    if isinstance(exc, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(exc, TerminatedError):
        _say(str(exc), prefix="")
        return exc.exit_code
    if os.environ.get("AEONFLOW_DEBUG"):
        traceback.print_exception(exc)
    _say(_message(exc))
    return USAGE if _is_usage(exc) else FAILED


def _is_usage(exc: BaseException) -> bool:
    from host.errors import InvalidRequestError

    return isinstance(exc, UsageError | InvalidRequestError)


def one_line(exc: BaseException) -> str:
    """The message of an error without line breaks; its class where it has none."""
    return " ".join(str(exc).split()) or type(exc).__name__


def _message(exc: BaseException) -> str:
    from aeonflow.errors import AeonflowError

    text = one_line(exc)
    if isinstance(exc, UsageError | CommandFailedError | AeonflowError):
        return text
    if isinstance(exc, OSError) and exc.strerror:
        where = f": {exc.filename}" if exc.filename else ""
        return f"{exc.strerror}{where}"
    name = type(exc).__name__
    return text if text == name else f"{name}: {text} (a bug; AEONFLOW_DEBUG=1 shows where)"


def _usage_message(exc: Any) -> str:
    text = " ".join(exc.format_message().split()).replace(": Value error, ", ": ")  # the checker's words, not ours
    checked = getattr(exc.__cause__, "errors", None)  # pydantic's, which leave out the value that was found
    found = repr(checked()[0].get("input")) if callable(checked) else ""
    if found not in text:
        text = f"{text.rstrip('.')}, found {found}"
    command = getattr(getattr(exc, "ctx", None), "command_path", "aeonflow")
    return f"{text.rstrip('.')} (see: {command} --help)"


def _leaf(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def _say(message: str, prefix: str = "error: ") -> None:
    with contextlib.suppress(OSError):
        print(f"{prefix}{message}", file=sys.stderr, flush=True)


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
