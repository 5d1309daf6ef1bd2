from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stations.kernels import Span, make_backend
from stations.kv import LayerKvCache
from stations.layout import unpack
from stations.models import UnsupportedModelError, build_synthetic
from stations.models.roles import all_roles
from stations.models.synthetic_spec import SyntheticSpec

from .gguf_files import ALL_TYPES


@pytest.mark.parametrize("weight_type", [t.lower() for t in ALL_TYPES])
def test_generated_models_of_every_type_have_the_scale_they_are_meant_to(weight_type: str, tmp_path: Path) -> None:
    width = 256 if weight_type.endswith("_k") else 64
    model = build_synthetic(f"synthetic:layers=1,hidden={width},ffn={width},type={weight_type}", tmp_path / "m")
    down = unpack(model.matrix("down", 0, "down"))
    assert model.matrix("down", 0, "down").kind == weight_type
    assert np.isfinite(down).all()
    assert down.std() * width**0.5 == pytest.approx(1.0, rel=0.1)
    assert abs(down.mean()) * width**0.5 < 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("synthetic:layer=2", "'layer' is unknown; known are layers, hidden"),
        ("synthetic:layers=two", "layers='two' is not a number"),
        ("synthetic:layers=0", ">= 1"),
        ("synthetic:heads=4,kv_heads=3", "heads=4 is no multiple of 3 kv_heads"),
        ("synthetic:hidden=66,heads=4", "hidden=66 is no multiple of heads=4"),
        ("synthetic:hidden=64,type=q4_k", "must be multiples of 256 for q4_k"),
        ("synthetic:vocab=100", "vocab=100, at least 259"),
        ("synthetic:type=q2_k", "type=q2_k; supported are f32"),
    ],
)
def test_impossible_generated_models_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        SyntheticSpec.parse(text)


@pytest.mark.parametrize("layers", [4, 60])
def test_the_outputs_of_generated_models_vary_and_never_overflow(layers: int, tmp_path: Path) -> None:
    model = build_synthetic(f"synthetic:layers={layers}", tmp_path / "m")
    backend = make_backend("reference", model, all_roles(layers))
    caches = [LayerKvCache(model.card.num_kv_heads, model.card.head_dim) for _ in range(layers)]
    ids, position, tokens = np.array([5, 77, 300, 12], np.uint32), 0, []
    for _ in range(30):
        spans = [[Span(cache, position, len(ids))] for cache in caches]
        x = backend.block(0, layers - 1, backend.embed(ids, 0, 1), spans)
        logits = backend.head(x[-1:], 0, 1)[0]
        assert np.isfinite(logits).all()
        assert 2.0 < logits.std() < 4.0
        position += len(ids)
        ids = np.array([logits.argmax()], np.uint32)
        tokens.append(int(ids[0]))
    assert len(set(tokens)) >= 4


def test_one_seed_gives_one_model_and_another_seed_another(tmp_path: Path) -> None:
    first, again = (build_synthetic("synthetic:layers=1,seed=5", tmp_path / name) for name in ("a", "b"))
    other = build_synthetic("synthetic:layers=1,seed=6", tmp_path / "c")
    assert first.card == again.card
    assert other.card.fingerprint != first.card.fingerprint
