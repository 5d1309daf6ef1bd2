"""Texts from stdin and files: UTF-8 whatever the locale is, refused where they are not, prompts never above a bound."""

from __future__ import annotations

import sys
from pathlib import Path

from .failure import UsageError

MAX_PROMPT_BYTES = 16 << 20  # above the longest context; without it `yes | aeonflow run -` would fill the memory


def read_prompt() -> str:
    """All of stdin, nothing of one that is closed. Raises UsageError for what is not UTF-8 or too long."""
    if sys.stdin is None:
        return ""
    return _text(sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1), "stdin")


def read_line(number: int) -> str | None:
    """The next line of stdin, its line end included; None at the end. Raises UsageError naming line `number`."""
    if sys.stdin is None:
        return None
    return _text(sys.stdin.buffer.readline(MAX_PROMPT_BYTES + 1), f"line {number} of stdin") or None


def _text(data: bytes, what: str) -> str:
    if len(data) > MAX_PROMPT_BYTES:
        raise UsageError(f"{what} has more than {MAX_PROMPT_BYTES} bytes: no context holds as many")
    return _utf8(data, what)


def read_file(path: Path) -> str:
    """All of a file. Raises UsageError naming it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read as text: {error.strerror}") from None
    return _utf8(data, str(path))


def _utf8(data: bytes, what: str) -> str:
    """The text of bytes. Raises UsageError with the first byte that is not UTF-8 and where it stands."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise UsageError(
            f"{what} is not UTF-8 text: byte 0x{byte:02x} at offset {error.start} of {len(data)}"
        ) from None
