from __future__ import annotations

from pathlib import Path

import pytest

from stations.models.folder import ModelFolder

from .local_stations import tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    folder: Path = tmp_path_factory.mktemp("models") / "tiny"
    return tiny_model(folder)
