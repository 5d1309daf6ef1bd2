"""A model ready to be started: in the cache, its depth known. The built-in one is fetched when it is missing."""

from __future__ import annotations

from typing import Any, NamedTuple

from .cache import DEFAULT_MODEL, GENERATED, model_path, read_card
from .children import run_verb
from .failure import CommandFailedError
from .pull import pull_default_if_missing


class ReadyModel(NamedTuple):
    """`name` as stations take it; `card` as on disk."""

    name: str
    num_layers: int
    card: dict[str, Any]


def ready_model(model: str | None) -> ReadyModel:
    """The model in place, ready for stations. None: the default one, pulled if it is missing.

    Errors: UsageError that says how to import it, CommandFailedError for a card that cannot be read.
    """
    name = model or DEFAULT_MODEL
    pull_default_if_missing(name)
    if name.startswith(GENERATED):
        name = str(run_verb("import", [name])["name"])
    path = model_path(name)
    card = read_card(path)
    num_layers = card.get("num_layers")
    if not isinstance(num_layers, int) or num_layers < 1:
        raise CommandFailedError(f"model {name!r}: {num_layers!r} layers on its card; at least 1 is needed")
    return ReadyModel(name, num_layers, card)
