"""`aeonflow pull`: import a model once. The work is done by the station verb `import`; this shows its progress."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any

import typer

from .cache import DEFAULT_MODEL, human_bytes, is_cached
from .children import run_verb
from .options import AsJson
from .output import note, print_json
from .progress import Ticker


def pull(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="smollm2, PATH.gguf, a Hugging Face folder, or hf:org/repo.")
    ],
    name: Annotated[str | None, typer.Option(help="Name in the cache (default: from the source).")] = None,
    roles: Annotated[
        str | None, typer.Option(metavar="ROLES", help="Keep these roles' weights only, as attn:0-14,gate_up:0-14.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import a model once: from a GGUF file, a Hugging Face folder, hf:org/repo, or the built-in name smollm2."""
    result = import_model(source, name=name, roles=roles)
    if as_json:
        print_json({key: value for key, value in result.items() if key != "event"})


def import_model(source: str, *, name: str | None = None, roles: str | None = None) -> dict[str, Any]:
    """Run the import with a progress bar on stderr; returns its result event."""
    arguments = [source]
    if name is not None:
        arguments += ["--name", name]
    if roles is not None:
        arguments += ["--roles", roles]
    with StageBar() as bar:
        result = run_verb("import", arguments, on_progress=bar.update)
    where = f"{result['name']} at {result['path']}, {human_bytes(result['bytes'])} of weights"
    note(f"already there: {where}" if result["already"] else f"imported {where}")
    return result


def pull_default_if_missing(model: str) -> None:
    """The built-in model is fetched when it is first needed; any other must be pulled by name."""
    if model == DEFAULT_MODEL and not is_cached(model):
        note(f"model {model} is not here yet: importing it once")
        import_model(model)


class StageBar:
    """A progress bar over stages on a terminal; elsewhere a line a stage, and every few seconds how far it is."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._stage = ""
        self._task: Any = None
        self._ticker: Ticker | None = None
        self._progress: Any = None
        self._context: AbstractContextManager[Any] = nullcontext()
        if self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[amount]}"),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=self._console)
            self._context = self._progress

    def __enter__(self) -> StageBar:
        self._context.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)

    def update(self, event: dict[str, Any]) -> None:
        stage, done, total = str(event.get("stage", "")), event.get("done") or 0, event.get("total") or 0
        is_new = stage != self._stage
        self._stage = stage
        unit = str(event.get("unit", ""))
        if self._progress is None:
            if is_new:
                note(stage)
                self._ticker = Ticker(stage, partial(_amount, unit=unit))
            elif self._ticker is not None:
                self._ticker(done, total)
            return
        amount = _amount(done, total, unit=unit)
        if is_new:
            self._task = self._progress.add_task(stage, total=total or None, amount=amount)
        self._progress.update(self._task, completed=done, total=total or None, amount=amount)


def _amount(done: float, total: float, *, unit: str) -> str:
    if unit in ("B", "bytes"):
        return f"{human_bytes(done)} of {human_bytes(total)}" if total else human_bytes(done)
    return f"{done:g} of {total:g} {unit}".strip() if total else f"{done:g} {unit}".strip()
