"""The models in the cache folder, read without loading any: name, size, geometry. The layout is in `docs/design.md`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from host.fleet.state import cache_root

from .failure import CommandFailedError

DEFAULT_MODEL = "smollm2"


class _Card(msgspec.Struct):
    name: str = ""
    architecture: str = ""
    num_layers: int = 0
    hidden_size: int = 0
    vocab_size: int = 0
    context_length: int = 0
    source: str = ""
    fingerprint: str = ""


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of the cache. `disk_bytes`: what its files take; `problem`: why it cannot be used, or empty."""

    name: str
    path: str
    disk_bytes: int
    architecture: str = ""
    num_layers: int = 0
    hidden_size: int = 0
    vocab_size: int = 0
    context_length: int = 0
    source: str = ""
    fingerprint: str = ""
    problem: str = ""


def models_folder() -> Path:
    return cache_root(os.environ) / "models"


def cached_models() -> list[CachedModel]:
    """Every model of the cache, by name; half-made ones carry their problem."""
    folder = models_folder()
    names = (
        sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")) if folder.is_dir() else []
    )
    return [_read(folder / name) for name in names]


def is_cached(name: str) -> bool:
    return (models_folder() / name / "card.json").is_file()


def require_known(model: str) -> None:
    """CommandFailedError when a model is neither in the cache, nor a model folder, nor generated."""
    if model.startswith("synthetic:") or (Path(model) / "card.json").is_file():
        return
    if "/" not in model and is_cached(model):
        return
    if Path(model).is_file() or Path(model).is_dir() or model.startswith("hf:"):
        raise CommandFailedError(f"model {model!r} is not imported yet; import it with: aeonflow pull {model}")
    known = ", ".join(m.name for m in cached_models()) or "none"
    raise CommandFailedError(
        f"model {model!r} is not in {models_folder()} (there: {known}); import one with: aeonflow pull smollm2 | "
        "PATH.gguf | hf:org/repo"
    )


def model_path(name: str) -> Path:
    """Folder of a model that `require_known` let pass: a name of the cache goes before a path."""
    if "/" not in name and is_cached(name):
        return models_folder() / name
    return Path(name)


def read_documents(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Card and manifest of a model, parsed. Errors: CommandFailedError naming the file."""
    found = []
    for file in ("card.json", "manifest.json"):
        path = model_path(name) / file
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
        except (OSError, msgspec.DecodeError) as exc:
            raise CommandFailedError(f"{path}: {exc}") from exc
    return found[0], found[1]


def model_depth(folder: Path) -> int:
    """Number of layers of the model in a folder. Errors: CommandFailedError when its card cannot be read."""
    found = _read(folder)
    if found.problem or found.num_layers < 1:
        raise CommandFailedError(f"model {folder}: {found.problem or f'{found.num_layers} layers on its card'}")
    return found.num_layers


def remove_model(name: str) -> int:
    """Delete a model of the cache; returns the bytes freed. Errors: CommandFailedError naming those there are."""
    found = {model.name: model for model in cached_models()}
    if name not in found:
        raise CommandFailedError(f"no model {name!r} in {models_folder()} (there: {', '.join(found) or 'none'})")
    shutil.rmtree(found[name].path)
    return found[name].disk_bytes


def human_bytes(size: float) -> str:
    """`98.4 MB`: decimal units, as disks and networks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _read(path: Path) -> CachedModel:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    try:
        card = msgspec.json.decode((path / "card.json").read_bytes(), type=_Card)
    except FileNotFoundError:
        return CachedModel(
            name=path.name, path=str(path), disk_bytes=size, problem="no card.json: a pull did not finish"
        )
    except msgspec.DecodeError as exc:
        return CachedModel(name=path.name, path=str(path), disk_bytes=size, problem=f"card.json: {exc}")
    return CachedModel(
        name=path.name,
        path=str(path),
        disk_bytes=size,
        architecture=card.architecture,
        num_layers=card.num_layers,
        hidden_size=card.hidden_size,
        vocab_size=card.vocab_size,
        context_length=card.context_length,
        source=card.source,
        fingerprint=card.fingerprint,
    )
