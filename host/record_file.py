"""A record kept as a JSON file of its own: replaced as a whole, read back as its type."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import HostError

T = TypeVar("T")


def save_record(path: Path, record: msgspec.Struct) -> Path:
    """Put the record in place of what the file was; a reader sees one of them whole. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    fresh.replace(path)
    return path


def load_record(path: Path, kind: type[T], command: str, error: type[HostError] = HostError) -> T | None:
    """The record, None where there is no file. `error` for other content; it names the command that makes it anew."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as why:
        raise error(f"{path} cannot be read: {why}; make it anew: {command}") from why
