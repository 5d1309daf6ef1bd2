"""Ladder and parallel models: the logits of their own formulas, and the same bits however they are cut."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aeonflow.errors import PlanError
from aeonflow.messages import InstallRoute
from aeonflow.tensors import Want
from stations.models.errors import UnsupportedModelError
from stations.models.synthetic_spec import SyntheticSpec
from tests.station.cores import CoreNet, ask, f32, ids_tensor

from .forward import Forward

IDS = [17, 300, 511, 0, 42, 42, 256, 99, 3, 470, 12]
LAYERS = 24
FORMS = ["sequential", "ladder", "parallel"]
LAST = LAYERS - 1
CUTS = {
    "blocks of 7": [f"embed,block:0-6,block:14-20,block:21-{LAST}", "block:7-13,head"],
    "trisplit": [f"attn:0-{LAST}", f"gate_up:0-{LAST}", f"down:0-{LAST}", "embed,head"],
    "slices": [f"attn:0-{LAST}", *(f"ffn:0-{LAST}:{part}/4" for part in range(4)), "embed:0/2,head", "embed:1/2"],
    "mixed": [
        "embed:0/2,block:0-3,attn:4-5,ffn:6-6:0/2", "gate_up:4-5,attn:6-9,down:7-8",
        f"down:4-5,ffn:6-6:1/2,block:10-{LAST}",
        "gate_up:7-9,down:9-9,embed:1/2,head:0/2,head:1/2",
    ],
}  # fmt: skip


def logits_of(net: CoreNet, cuts: list[int], rng: random.Random | None = None) -> np.ndarray:
    """Logits of every row of IDS, sent in passes of these sizes."""
    net.open()
    first = 0
    for count in cuts:
        net.send(ids_tensor(IDS[first : first + count], first=first, want=Want.ALL))
        first += count
    answers = net.run(rng)
    assert [answer.vent for answer in answers if answer.vent] == []
    parts = sorted((a.tensors[0] for a in answers), key=lambda t: (t.first, t.part))
    found: dict[int, list[np.ndarray]] = {}
    for tensor in parts:
        found.setdefault(tensor.first, []).append(f32(tensor))
    return np.concatenate([np.concatenate(found[at], axis=1) for at in sorted(found)])


@pytest.mark.parametrize("residual", FORMS)
def test_one_process_gives_the_logits_of_the_formulas(residual, make_model) -> None:
    model = make_model(f"layers={LAYERS},residual={residual}")
    found = logits_of(CoreNet(model, [f"embed,block:0-{LAST},head"]), [len(IDS)])
    expected = Forward(model).logits(IDS)
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


def test_the_three_forms_are_three_models(make_model) -> None:
    logits = [Forward(make_model(f"layers={LAYERS},residual={residual}")).logits(IDS) for residual in FORMS]
    for i, one in enumerate(logits):
        for other in logits[:i]:
            assert np.abs(one - other).max() > 0.5


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("residual", ["ladder", "parallel"])
def test_every_cut_and_chunking_gives_the_bits_of_one_process(residual, cut, make_model) -> None:
    model = make_model(f"layers={LAYERS},residual={residual}")
    solo = logits_of(CoreNet(model, [f"embed,block:0-{LAST},head"]), [len(IDS)])
    assert np.array_equal(logits_of(CoreNet(model, CUTS[cut]), [4, 1, 1, 5], random.Random(1)), solo)


def test_a_route_of_another_residual_is_refused_with_both_named(make_model) -> None:
    net = CoreNet(make_model("layers=2,residual=ladder"), ["embed,block:0-1,head"])
    plain = CoreNet(make_model("layers=2"), ["embed,block:0-1,head"])
    with pytest.raises(PlanError, match="for a sequential residual, the model's is ladder"):
        ask(net.stations[0], InstallRoute(plain.route, 0))
    with pytest.raises(PlanError, match="for a ladder residual, the model's is sequential"):
        ask(plain.stations[0], InstallRoute(net.route, 0))


@pytest.mark.parametrize("mode", ["shadow", "bypass", "draft"])
@pytest.mark.parametrize("residual", ["ladder", "parallel"])
def test_seeds_of_other_modes_are_refused_where_the_residual_has_its_own(mode, residual, make_model) -> None:
    roles = ["attn:0-1", "gate_up:0-1", "down:0-1", "embed,head"]
    with pytest.raises(PlanError, match=f"pair_x {mode} with a {residual} residual: off and live are possible"):
        CoreNet(make_model(f"layers=2,residual={residual}"), roles, pair_x=mode, seeded=(1,))


def test_unknown_residuals_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="residual=tree; known are sequential, ladder, parallel"):
        SyntheticSpec.parse("synthetic:residual=tree")
