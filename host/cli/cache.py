"""Imported models, as far as a host looks at them: are they there, how deep are they, what do their files weigh.

Folders are laid out as in `docs/design.md`, *Weights on disk*; listing and deleting are the station verb `models`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from host.fleet.state import cache_root

from .failure import CommandFailedError, UsageError

DEFAULT_MODEL = "smollm2"
GENERATED = "synthetic:"


def models_folder() -> Path:
    return cache_root(os.environ) / "models"


def is_cached(name: str) -> bool:
    return "/" not in name and (models_folder() / name / "card.json").is_file()


def cached_models() -> list[str]:
    """Names of the models that were imported."""
    return sorted(path.parent.name for path in models_folder().glob("[!.]*/card.json"))


def model_path(name: str) -> Path:
    """Folder of a model: a name of the cache goes before a path to a folder.

    Errors: UsageError that says how to import it, and what there is.
    """
    if is_cached(name):
        return models_folder() / name
    path = Path(name).expanduser()
    if (path / "card.json").is_file():
        return path
    if path.exists() or name.startswith("hf:"):
        raise UsageError(f"model {name!r} is not imported yet; import it with: aeonflow pull {name}")
    known = ", ".join(cached_models()) or "none"
    raise UsageError(
        f"model {name!r} is not in {models_folder()} (there: {known}); import one with: "
        "aeonflow pull smollm2 | PATH.gguf | hf:org/repo"
    )


def read_card(path: Path) -> dict[str, Any]:
    """The model card of a folder, parsed. Errors: CommandFailedError naming the file."""
    return _read_object(path / "card.json")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a folder, parsed. Errors: CommandFailedError naming the file."""
    return _read_object(path / "manifest.json")


def human_bytes(size: float) -> str:
    """`98.4 MB`: decimal units, as disks and networks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as exc:
        raise CommandFailedError(f"{path}: {exc.strerror}") from exc
    except msgspec.DecodeError as exc:
        raise CommandFailedError(f"{path}: {exc}") from exc
