from __future__ import annotations

from collections.abc import Callable

import pytest

from stations.models.folder import ModelFolder
from stations.models.synthetic import build_synthetic

from .cases import LAYERS, Case

MakeModel = Callable[[str], ModelFolder]


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """`make_model("layers=24,residual=ladder")`: a small generated model, made once a run."""
    made: dict[str, ModelFolder] = {}

    def make(changes: str = "") -> ModelFolder:
        if changes not in made:
            folder = tmp_path_factory.mktemp("models") / "model"
            made[changes] = build_synthetic(f"{SMALL},{changes}", folder)
        return made[changes]

    return make


@pytest.fixture(scope="session")
def case(make_model: MakeModel, tiny_model: object) -> Case:
    """Five layers cut in three ways, over kernels that `tiny_model` has compiled."""
    return Case(make_model(f"layers={LAYERS}"))


SMALL = "synthetic:hidden=64,heads=4,kv_heads=2,ffn=256,vocab=512,context=256,seed=11"
