"""The KV options of an engine: from keywords and command line to what sessions are opened with, and their exactness.

The schema and what combines with what is `aeonflow/kv_options.py`'s; here are the words that users say them in.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from aeonflow.errors import UnsupportedError
from aeonflow.kv_options import DEFAULT_EXACT_RECENT, KvOptions, parse_kv_options

from .errors import InvalidRequestError, UnsupportedOptionError

MAX_LAYERS = 1024  # no model is deeper; a span is laid out as a list before the model is known
_NO_ZERO = ("kv_max", "window")
_KEYWORDS = {"exact_recent": "kv_exact_recent", "max_rows": "kv_max", "evict": "kv_evict", "sink": "kv_sink"}
_ON_THE_WIRE = {keyword: name for name, keyword in _KEYWORDS.items()}


class KvKeywords(TypedDict, total=False):
    """Keywords of `Engine.launch` and `Engine.connect` (`docs/kv-cache.md`, *Options*); None as not given."""

    kv: str
    kv_exact_recent: int | None
    kv_max: int | None
    kv_evict: str | None
    kv_sink: int | None
    window: int | None
    o1: str | None
    approximate: bool


def make_kv_options(*, o1: str | None = None, approximate: bool = False, **keywords: Any) -> KvOptions:
    """Checked options from `KvKeywords`. Raises UnsupportedOptionError by name.

    `o1` as on the command line: `m=32,w=128,sink=4,layers=4-9+12`. Whether it is permitted on a model says
    `overlay_proof.is_certified`, or `approximate`.
    """
    if approximate and o1 is None:
        raise InvalidRequestError("approximate without o1: there is nothing that it would permit")
    if o1 is not None:
        keywords["o1"] = parse_overlay(o1)
    given = {name: value for name, value in keywords.items() if value is not None}
    for name in _NO_ZERO:
        if given.get(name) == 0:
            raise InvalidRequestError(f"{name} 0: leave it out to be without")
    try:
        return parse_kv_options({_ON_THE_WIRE.get(name, name): value for name, value in given.items()})
    except UnsupportedError as error:
        raise UnsupportedOptionError(_in_keywords(str(error))) from None


def _in_keywords(message: str) -> str:
    """A message about options on the wire in the words that users know. (The parts of o1 are called the same.)"""
    if message.startswith("cache option o1 "):
        return message
    return re.sub(r"\b(" + "|".join(_KEYWORDS) + r")\b", lambda found: _KEYWORDS[found[0]], message)


def parse_overlay(text: str) -> dict[str, Any]:
    """`m=32,w=128,sink=4,layers=4-9+12,at=512`, each part optional, as the wire has it. InvalidRequestError else."""
    overlay: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name in overlay:
            raise InvalidRequestError(f"o1 {text!r}: {name} is given twice")
        try:
            overlay[name] = _layers(value) if name == "layers" else int(value)
        except ValueError:
            raise InvalidRequestError(
                f"o1 {text!r}: {part!r} is not NAME=NUMBER or layers=LO-HI+…, 0 <= LO <= HI < {MAX_LAYERS}"
            ) from None
    return overlay


def _layers(text: str) -> list[int]:
    found: set[int] = set()
    for span in text.split("+"):
        first, separator, last = span.partition("-")
        lo, hi = int(first), int(last if separator else first)
        if not 0 <= lo <= hi < MAX_LAYERS:
            raise ValueError(span)
        found.update(range(lo, hi + 1))
    return sorted(found)


def exactness_options(options: KvOptions, *, is_certified: bool = False) -> dict[str, object]:
    """What `explain` knows these options as. `is_certified`: O(1) layers are shown to gain on the model."""
    chosen: dict[str, object] = {"kv": options.kv}
    recent = options.exact_recent
    if recent is not None:
        chosen["kv_exact_recent"] = "few" if 0 < recent < DEFAULT_EXACT_RECENT[options.kv] else recent
    if options.max_rows:
        chosen |= {"kv_max": options.max_rows, "kv_evict": options.eviction, "kv_sink": options.sink_rows}
    if options.window:
        chosen["window"] = options.window
    if options.o1 is not None:
        chosen["o1"] = "certified" if is_certified else str(options.o1)
    return chosen
