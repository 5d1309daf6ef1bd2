from __future__ import annotations

import pytest

from stations.models.folder import ModelFolder
from stations.models.synthetic import build_synthetic

from .local_stations import TINY, tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """The same geometry with other weights."""
    return build_synthetic(TINY.replace("seed=3", "seed=4"), tmp_path_factory.mktemp("models") / "other")
