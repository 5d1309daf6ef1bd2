"""`python -m stations card MODEL`: the model's card, for a host that must know how many layers to share out."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from .events import EventParser, run_verb


def main(argv: list[str]) -> int:
    """Print the card of one model as a result event."""
    parser = EventParser(prog="card", description=__doc__)
    parser.add_argument("model", help="name in the cache, path of a model folder, or synthetic:…")
    return run_verb(lambda: _card(parser.parse_args(argv).model))


def _card(model: str) -> dict[str, Any]:
    from ..models.documents import CARD_FILE, decode_card
    from ..models.store import ModelStore

    path = ModelStore.default(os.environ).resolve(model)
    return {"path": str(path), "card": msgspec.to_builtins(decode_card((path / CARD_FILE).read_bytes()))}
