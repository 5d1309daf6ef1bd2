"""The orchestrator: plans, chains, fleets, text and sampling, behind one class to embed: `Engine`.

The names below are loaded when first used: a command that only prints help must not wait for numpy and tokenizers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine
    from .errors import HostError
    from .generate import Generation
    from .result import Chunk, Result
    from .session import Session

__all__ = ["Chunk", "Engine", "Generation", "HostError", "Result", "Session"]

_HOMES = {
    "Chunk": "result",
    "Engine": "engine",
    "Generation": "generate",
    "HostError": "errors",
    "Result": "result",
    "Session": "session",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'host' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)
