from __future__ import annotations

from pathlib import Path

import pytest

from stations.models.folder import ModelFolder

from .fleets import Plain


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> ModelFolder:
    """4 layers, 4 heads on 2 KV heads of 16 dims, its kernels compiled."""
    return ModelFolder.open(tiny_model)


@pytest.fixture(scope="session")
def plain(model: ModelFolder) -> Plain:
    return Plain(model)
