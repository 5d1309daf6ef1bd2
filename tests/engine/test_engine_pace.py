"""Measured costs of passes: whatever the probes say, prefill windows can be chosen from them."""

from __future__ import annotations

import pytest

from host.card import HostCard
from host.pace import Measured, Pace
from host.prefill import Shape

CARD = HostCard(30, 576, 9, 3, 64, 1536, 49152, 8192, name="m", fingerprint="")
SHAPES = [Shape(2, 2, 3), Shape(90, 3, 93), Shape(90, 3, 93, 2), Shape(90, 90, 93), Shape(1, 1, 0)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("one_s", [-0.01, 0.0, 0.004])
@pytest.mark.parametrize("more_s", [0.0, 0.002, 0.03])
def test_probes_whose_computes_did_not_arrive_leave_costs_that_work(shape: Shape, one_s: float, more_s: float) -> None:
    pace = Pace(CARD, shape)
    pace.calibrate(Measured(1, 0.01, one_s), Measured(8, 0.02, more_s))
    assert pace.costs.row_s > 0.0
    assert pace.costs.fixed_s > 0.0
    assert 1 <= pace.window(1000, None, 4096).chunk <= 512
    assert pace.cap() >= 1
