"""`--o1` is used where a report shows that the model gains by it, and nowhere else unless `approximate` permits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from aeonflow.kv_options import KvOptions, OverlayOptions
from host import Engine
from host.errors import InvalidRequestError, UnsupportedOptionError
from host.evaluate import prove, texts_to_windows
from host.overlay_proof import OverlayProof, equal_window, find_proof, save_proof
from host.plan import Geometry
from stations.models.folder import ModelFolder

from .fleets import engine_on, generated

O1 = OverlayOptions(m=4, w=16, sink=2)
TEXT = "m=4,w=16,sink=2"
CONTEXT = 256


@pytest.fixture
def proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AEONFLOW_HOME", str(tmp_path))  # reference kernels: none is compiled there
    return tmp_path / "proofs"


def a_proof(model: ModelFolder, **figures: Any) -> OverlayProof:
    proof = OverlayProof(
        fingerprint=model.card.fingerprint, model="tiny", o1=O1, window=KvOptions(max_rows=128, evict="recent", sink=2),
        context=CONTEXT, num_text_tokens=300, texts=("a" * 64,), kl=0.1, window_kl=0.3, gain=0.2, gain_se=0.05,
        recall=1.2, window_recall=2.0, kv_bytes=1000, window_kv_bytes=1010,
    )  # fmt: skip
    return msgspec.structs.replace(proof, **figures)


def engine(model: ModelFolder, **keywords: Any) -> Any:
    return engine_on("layers:2", model, kernels="reference", o1=TEXT, **keywords)


async def test_without_a_report_it_is_refused_and_told_how_to_get_one(model: ModelFolder, proofs: Path) -> None:
    with pytest.raises(UnsupportedOptionError, match=rf"o1 {TEXT}: no report .*aeonflow eval .*--approximate"):
        async with engine(model):
            raise AssertionError("it was used")


async def test_a_report_of_a_gain_permits_it_and_it_is_declared_certified(model: ModelFolder, proofs: Path) -> None:
    save_proof(proofs, a_proof(model))
    async with engine(model) as running:
        await generated(running, [1, 2, 3], 3)
        assert running.setting.exactness.model == "certified"
    with pytest.raises(UnsupportedOptionError, match="o1 m=4,w=17,sink=2: no report"):
        async with engine_on("layers:2", model, kernels="reference", o1="m=4,w=17,sink=2"):
            raise AssertionError("a report of other layers was believed")


@pytest.mark.parametrize("figures", [{"gain": -0.2}, {"gain": 0.09}, {"gain_se": None}, {"num_text_tokens": 255}])
async def test_a_report_of_no_certain_gain_refuses_it_with_the_figures(
    figures: dict[str, Any], model: ModelFolder, proofs: Path
) -> None:
    save_proof(proofs, a_proof(model, **figures))
    with pytest.raises(UnsupportedOptionError, match=r"KL 0\.1 against 0\.3 of f32 max_rows=128 .* at 256 tokens"):
        async with engine(model):
            raise AssertionError("it was used")
    async with engine(model, approximate=True) as running:
        assert running.setting.exactness.model == "approximate"


async def test_a_report_that_was_copied_from_another_model_is_refused(model: ModelFolder, proofs: Path) -> None:
    path = save_proof(proofs, a_proof(model))
    path.write_bytes(msgspec.json.encode(a_proof(model, fingerprint="f" * 64)))
    with pytest.raises(UnsupportedOptionError, match=r"is the report of .* on the model ffff"):
        async with engine(model):
            raise AssertionError("it was believed")
    path.write_bytes(b"{}")
    with pytest.raises(UnsupportedOptionError, match=r"cannot be read: .*aeonflow eval FILE… --o1"):
        find_proof(proofs, model.card.fingerprint, O1)


async def test_what_is_measured_decides(model: ModelFolder, proofs: Path) -> None:
    text = [(i * i * 31 + i) % 512 for i in range(520)]
    async with Engine.launch(model=str(model.path), kernels="reference") as running:
        windows = texts_to_windows([text], CONTEXT, 4096)
        option = KvOptions(o1=O1)
        proof, overlay, window = await prove(running, windows, option, [text], progress=lambda done, total: None)
    assert (proof.fingerprint, proof.context) == (model.card.fingerprint, CONTEXT)
    assert overlay.kl is not None
    assert window.kl is not None
    assert proof.gain == pytest.approx(window.kl.value - overlay.kl.value)
    assert proof.kl > 0
    assert proof.gain_se is not None
    assert proof.wins == (proof.gain > 2 * proof.gain_se and proof.num_text_tokens >= 256)
    save_proof(proofs, proof)
    if proof.wins:
        async with engine(model) as running:
            assert running.setting.exactness.model == "certified"
    else:
        with pytest.raises(UnsupportedOptionError, match="does not beat a window of equal bytes"):
            async with engine(model):
                raise AssertionError("it was used")


def test_the_window_takes_the_same_bytes_on_average() -> None:
    model = Geometry(30, 576, 9, 3, 64, 1536, 49_152, 8192)
    window = equal_window(OverlayOptions(m=32, w=128), 2048, model)
    assert (window.evict, window.sink) == ("recent", 4)
    row = 2 * 3 * 64 * 4
    sealed = 3 * 4 * (2 * 132 * 64 + 32 * 64 + 3 * (2 * 32 * 64 + 2 * 32 + 32 * 32))
    assert window.max_rows * 7 / 8 * row == pytest.approx(sealed, rel=0.08)  # and some scratch
    some = equal_window(OverlayOptions(m=32, w=128, layers=(0, 1, 2)), 2048, model)
    assert 0.9 * 2048 < some.max_rows < 0.95 * 2048
    with pytest.raises(InvalidRequestError, match=r"context 512: .* measure them at a longer one"):
        equal_window(OverlayOptions(m=64, w=256), 512, model)
