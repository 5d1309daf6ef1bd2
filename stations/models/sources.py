"""Importing a model by what the user names: a built-in name, a GGUF file, a folder, `hf:org/repo`, `synthetic:…`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from .build import Progress, build_folder, no_progress, scratch_folder
from .builtin import BUILTIN, BuiltinModel, fetch_builtin
from .checkpoint import Checkpoint
from .errors import ModelError, ModelNotFoundError
from .folder import ModelFolder
from .gguf_model import GgufCheckpoint
from .hf_hub import HUB_PREFIX, fetch_repository
from .hf_model import CONFIG_FILE, HfCheckpoint
from .roles import parse_roles
from .store import ModelStore
from .synthetic import SyntheticCheckpoint
from .synthetic_spec import PREFIX, SyntheticSpec

KINDS = f"{', '.join(BUILTIN)} (built in), PATH.gguf, a Hugging Face folder, hf:org/repo, synthetic:…"


class Imported(NamedTuple):
    """An imported model; `already` when it was there and nothing was done."""

    name: str
    folder: ModelFolder
    already: bool = False


def import_model(
    source: str,
    store: ModelStore,
    *,
    name: str | None = None,
    roles: str | None = None,
    progress: Progress = no_progress,
    builtin: dict[str, BuiltinModel] = BUILTIN,
) -> Imported:
    """Import `source` into the store under `name` (made from the source by default).

    Built-in and generated models that are there already, with the roles asked for, are left as they are. Raises
    ModelError subclasses: what was found, what is supported, the numbers.
    """
    name = name or default_name(source, builtin)
    target = store.path(name)
    if (source in builtin or source.startswith(PREFIX)) and (found := _complete(target, roles)):
        return Imported(name, found, already=True)
    with _open(source, name, store, progress, builtin) as checkpoint:
        spans = parse_roles(roles, checkpoint.card.num_layers) if roles else None
        return Imported(name, build_folder(checkpoint, target, roles=spans, progress=progress))


def default_name(source: str, builtin: dict[str, BuiltinModel] = BUILTIN) -> str:
    """The store's name for a source: a built-in name, a generated model's, or the last part of a path, tidied."""
    if source in builtin:
        return source
    if source.startswith(PREFIX):
        return SyntheticSpec.parse(source).name
    last = re.split("[/@]", source.removeprefix(HUB_PREFIX).split("@")[0].rstrip("/"))[-1]
    tidy = re.sub("[^A-Za-z0-9._-]+", "-", last.removesuffix(".gguf")).strip("-._").lower()
    return tidy[:100] or "model"


def _complete(target: Path, roles: str | None) -> ModelFolder | None:
    """The model at `target` if it can be read and holds all files, or those of the roles."""
    try:
        folder = ModelFolder.open(target)
    except ModelError:  # none, damaged or of another version: what the import is for
        return None
    if roles is None:
        return folder if all(map(folder.holds, folder.manifest.files)) else None
    return None if folder.missing(parse_roles(roles, folder.card.num_layers)) else folder


@contextmanager
def _open(
    source: str, name: str, store: ModelStore, progress: Progress, builtin: dict[str, BuiltinModel]
) -> Iterator[Checkpoint]:
    if source.startswith(PREFIX):
        yield SyntheticCheckpoint(SyntheticSpec.parse(source))
        return
    if source in builtin or source.startswith(HUB_PREFIX):
        with scratch_folder(store.models / f".{name}.download") as scratch:
            if source in builtin:
                path = fetch_builtin(builtin[source], scratch, progress)
            else:
                path = fetch_repository(source, scratch, progress)
            with _open_path(path, name) as checkpoint:
                yield checkpoint
        return
    with _open_path(Path(source).expanduser(), name) as checkpoint:
        yield checkpoint


@contextmanager
def _open_path(path: Path, name: str) -> Iterator[Checkpoint]:
    if path.is_dir():
        if not (path / CONFIG_FILE).is_file():
            raise ModelNotFoundError(f"{path} has no {CONFIG_FILE}; a source is {KINDS}")
        with closing(HfCheckpoint(path, name)) as folder:
            yield folder
    elif path.is_file():
        with closing(GgufCheckpoint(path, name)) as file:
            yield file
    else:
        raise ModelNotFoundError(f"{str(path)!r} is no file, folder or known name; a source is {KINDS}")
