"""From exceptions to exit codes: one line `error: …` on stderr, never a traceback.

0 done · 1 it failed · 2 the command cannot be meant like this: an option, a value, a plan, a file to read or a name of
something that is not there · 130 stopped by Ctrl-C · 141 the reader of the pipe left · 143 ended by SIGTERM.
With `--json` an error is also the one object on stdout: `{"error": {"code": …, "message": …}}`.
`AEONFLOW_DEBUG=1` shows the traceback before the line.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
JSON_OPTION, END_OF_OPTIONS = "--json", "--"

# Typer carries its own copy of click since 0.16; this names the class of either.
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class UsageError(Exception):
    """What was given contradicts itself, is missing, or names what is not there: exit code 2."""

    code = "usage"


class CommandFailedError(Exception):
    """The command failed and the message is all there is to say: exit code 1.

    `has_printed`: its JSON object is on stdout already, and says so.
    """

    def __init__(self, message: str, *, code: str = "failed", has_printed: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.has_printed = has_printed


def run_app(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Nothing escapes."""
    from .app import app

    as_json = _wants_json(arguments)
    command = typer.main.get_command(app)
    try:
        code = command.main(list(arguments), prog_name="aeonflow", standalone_mode=False)
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
        if message := exc.format_message() and _usage_message(
            exc, _path_of(command, arguments)
        ):  # empty: of a group whose help was printed
            _say(message)
            _print_error(UsageError(message), message, as_json=as_json)
        return USAGE
    except BaseExceptionGroup as group:
        return _report(_leaf(group), as_json=as_json)
    except Exception as exc:
        return _report(exc, as_json=as_json)


def _wants_json(arguments: Sequence[str]) -> bool:
    options = [*arguments, END_OF_OPTIONS]
    return JSON_OPTION in options[: options.index(END_OF_OPTIONS)]


def _report(exc: BaseException, *, as_json: bool) -> int:
    from .loop import TerminatedError

    if isinstance(exc, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(exc, TerminatedError):
        _say(str(exc), prefix="")
        return exc.exit_code
    if os.environ.get("AEONFLOW_DEBUG"):
        traceback.print_exception(exc)
    message = _message(exc)
    _say(message)
    _print_error(exc, message, as_json=as_json)
    return USAGE if _is_usage(exc) else FAILED


def _is_usage(exc: BaseException) -> bool:
    from aeonflow.errors import PlanError, UnsupportedError
    from host.errors import InvalidRequestError
    from host.fleet.errors import UnknownFleetError

    return isinstance(exc, UsageError | InvalidRequestError | PlanError | UnsupportedError | UnknownFleetError)


def _print_error(exc: BaseException, message: str, *, as_json: bool) -> None:
    """The error as the one object on stdout, for whoever reads that."""
    if not as_json or getattr(exc, "has_printed", False):
        return
    code = "os_error" if isinstance(exc, OSError) else getattr(exc, "code", "internal")
    with contextlib.suppress(OSError):
        print(json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False), flush=True)


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
    if isinstance(exc, TimeoutError):
        return f"a wait reached its limit: {text} (AEONFLOW_DEBUG=1 shows where)"
    name = type(exc).__name__
    return text if text == name else f"{name}: {text} (a bug; AEONFLOW_DEBUG=1 shows where)"


def _path_of(command: Any, arguments: Sequence[str]) -> str:
    """The command that `arguments` begin with: `aeonflow bench wire`."""
    path = ["aeonflow"]
    for word in arguments:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path.append(word)
    return " ".join(path)


def _usage_message(exc: Any, command: str) -> str:
    text = " ".join(exc.format_message().split()).replace(": Value error, ", ": ")  # the checker's words, not ours
    checked = getattr(exc.__cause__, "errors", None)  # pydantic's, which leave out the value that was found
    found = repr(checked()[0].get("input")) if callable(checked) else ""
    if found not in text:
        text = f"{text.rstrip('.')}, found {found}"
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
