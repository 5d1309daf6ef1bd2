from __future__ import annotations

from pathlib import Path

import pytest

from stations.models.folder import ModelFolder


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> ModelFolder:
    return ModelFolder.open(tiny_model)
