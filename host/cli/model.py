"""A model ready to be started: in the cache, its depth known. The built-in one is fetched when it is missing."""

from __future__ import annotations

from .cache import DEFAULT_MODEL, model_depth, model_path, require_known
from .children import run_verb
from .failure import CommandFailedError
from .pull import pull_default_if_missing

GENERATED = "synthetic:"


def ready_model(model: str | None) -> tuple[str, int]:
    """The model as stations take it, and its number of layers. None: the default one, pulled if it is missing.

    Errors: CommandFailedError that says how to import it.
    """
    name = model or DEFAULT_MODEL
    pull_default_if_missing(name)
    if name.startswith(GENERATED):
        name = _generated(name)
    require_known(name)
    return name, model_depth(model_path(name))


def _generated(text: str) -> str:
    result = run_verb("import", [text])
    name = result.get("name")
    if not isinstance(name, str):
        raise CommandFailedError(f"{text} was generated, but the import names no model")
    return name
