"""The cache of imported models: `<cache>/models/<name>/`. Listing, finding, removing; importing is `sources.py`.

`<cache>` is $AEONFLOW_HOME, else ~/.cache/aeonflow. The environment is an argument.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .documents import CARD_FILE
from .errors import ModelError, ModelNameError, ModelNotFoundError
from .folder import ModelFolder
from .synthetic_spec import PREFIX, SyntheticSpec

HOME_VARIABLE = "AEONFLOW_HOME"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}$")


class StoredModel(NamedTuple):
    """A model of the store: bytes on disk, and files present of files in its manifest."""

    name: str
    path: Path
    bytes: int
    files: int
    files_total: int
    fingerprint: str
    source: str


def cache_folder(environment: Mapping[str, str]) -> Path:
    """`$AEONFLOW_HOME` or `~/.cache/aeonflow`, absolute; it need not exist."""
    home = environment.get(HOME_VARIABLE)
    return Path(home).expanduser().absolute() if home else Path.home() / ".cache" / "aeonflow"


class ModelStore:
    """The models under one cache folder."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.models = cache / "models"

    @classmethod
    def default(cls, environment: Mapping[str, str]) -> ModelStore:
        return cls(cache_folder(environment))

    def path(self, name: str) -> Path:
        """Where the model `name` lies or would lie. Raises ModelNameError for a name that is no plain file name."""
        if not _NAME.match(name):
            raise ModelNameError(f"model name {name!r}: letters, digits and . _ + = - are allowed, 100 at most")
        return self.models / name

    def names(self) -> list[str]:
        """Names of the imported models, sorted."""
        if not self.models.is_dir():
            return []
        found = (p for p in self.models.iterdir() if not p.name.startswith(".") and (p / CARD_FILE).is_file())
        return sorted(p.name for p in found)

    def resolve(self, model: str) -> Path:
        """The folder of a model given by name, by `synthetic:…`, or as a path to a model folder.

        A name goes before a path. Raises ModelNotFoundError that lists the models there are.
        """
        name = SyntheticSpec.parse(model).name if model.startswith(PREFIX) else model
        if _NAME.match(name) and (self.models / name / CARD_FILE).is_file():
            return self.models / name
        path = Path(model).expanduser()
        if (path / CARD_FILE).is_file():
            return path.absolute()
        raise self._not_found(model)

    def open(self, model: str) -> ModelFolder:
        """`resolve` and open."""
        return ModelFolder.open(self.resolve(model))

    def list(self) -> list[StoredModel]:
        """What is there; a folder that cannot be read is listed with the reason as its source."""
        return [self._describe(name) for name in self.names()]

    def remove(self, name: str) -> int:
        """Delete a model; returns the bytes freed. Running stations keep the pages they have mapped."""
        path = self.path(name)
        if not path.is_dir():
            raise self._not_found(name)
        size = _folder_bytes(path)
        doomed = path.with_name(f".{name}.removed")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)  # at once gone by name, even if deleting is interrupted
        shutil.rmtree(doomed)
        return size

    def _not_found(self, model: str) -> ModelNotFoundError:
        known = ", ".join(self.names()) or "none"
        return ModelNotFoundError(
            f"model {model!r} is not in {self.models} (there: {known}); `aeonflow pull` imports one"
        )

    def _describe(self, name: str) -> StoredModel:
        path = self.models / name
        try:
            folder = ModelFolder.open(path)
        except ModelError as error:
            return StoredModel(name, path, _folder_bytes(path), 0, 0, "", f"unreadable: {error}")
        present = sum(folder.holds(f) for f in folder.manifest.files)
        card = folder.card
        return StoredModel(
            name, path, _folder_bytes(path), present, len(folder.manifest.files), card.fingerprint, card.source
        )


def _folder_bytes(path: Path) -> int:
    return sum(p.stat().st_size for p in path.iterdir() if p.is_file())
