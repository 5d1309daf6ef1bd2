"""The KV options of `run` for other commands: whatever `run` takes on its KV panel, they take too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from .options import KV_PANEL
from .run import run


def kv_parameters() -> list[inspect.Parameter]:
    """Parameters of `run` on its KV panel, annotations resolved."""
    hints = get_type_hints(run, include_extras=True)
    found = inspect.signature(run).parameters.values()
    return [p.replace(annotation=hints[p.name]) for p in found if _panel(hints[p.name]) == KV_PANEL]


def with_kv_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the KV options in place of its parameter `kv_options`: it gets them as keywords of `Engine`."""
    options = kv_parameters()
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters.values()
    own = [p.replace(annotation=hints[p.name]) for p in parameters if p.name != "kv_options"]

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        command(kv_options={p.name: given.pop(p.name) for p in options}, **given)

    wrapper.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in (*own, *options)}
    return wrapper


def _panel(annotation: Any) -> str | None:
    found = getattr(annotation, "__metadata__", ())
    return next((panel for option in found if (panel := getattr(option, "rich_help_panel", None))), None)
