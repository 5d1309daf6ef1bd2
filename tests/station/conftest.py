from __future__ import annotations

import pytest

from stations.models.folder import ModelFolder
from stations.models.synthetic import build_synthetic

from .cores import PlainModel

SPEC = "synthetic:layers=3,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=512,context=128,seed=11"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A generated model: 3 layers, hidden 64, ffn 128, vocabulary 512, context 128."""
    return build_synthetic(SPEC, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def plain(model: ModelFolder) -> PlainModel:
    return PlainModel(model)
