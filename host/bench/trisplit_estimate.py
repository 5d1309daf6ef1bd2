"""How long a cell takes, told before anything starts: from the cost model of plans and the delay of a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..fleet.launcher import usable_cores
from ..plan import Geometry, make_plan
from ..plan.cost import Machine, plan_cost
from ..plan.sizes import weights_from_geometry
from .trisplit import Cell, is_traced_apart, warm_tokens

HOP_S = 250e-6  # software of a hop on a machine whose stations share its cores
START_S = 6.0  # processes, model, goodbyes
CONTROL_ROUNDS = 12  # of control messages one after the other, each there and back: hello, card, route, open, traces
PROBE_PASSES = 3  # by which an engine measures its chain
PREFILL_PASSES = 2.0  # worth of time, for the chunks of a prompt travel behind each other
LIMIT_FACTOR, LIMIT_S = 4.0, 90.0  # a busy machine is slow, a hung one is cut off


class Estimator:
    """For one model. `card`: its parsed card."""

    def __init__(self, card: Mapping[str, Any]) -> None:
        self._geometry = Geometry.from_card(card)
        self._weights = weights_from_geometry(self._geometry)

    def token_s(self, cell: Cell) -> float:
        """Seconds of a plain decoded token, without what speculation saves. PlanError for a plan that is none."""
        plan = make_plan(cell.plan, self._geometry.num_layers)
        machine = Machine(hop_s=HOP_S + cell.link_delay_ms / 1000, cores=usable_cores())
        return plan_cost(
            plan, self._geometry, self._weights, route=cell.route, context=min(512, self._geometry.context_length),
            machine=machine,
        ).token_s  # fmt: skip

    def cell_s(self, cell: Cell) -> float:
        """Seconds of the whole cell: start, probes, prefill, tokens, end."""
        runs = 2 if is_traced_apart(cell) else 1
        warm = warm_tokens(cell) and PREFILL_PASSES + warm_tokens(cell)
        passes = PROBE_PASSES + warm + runs * (PREFILL_PASSES + cell.new_tokens)
        return START_S + CONTROL_ROUNDS * 2 * cell.link_delay_ms / 1000 + passes * self.token_s(cell)

    def sessions_s(self, cell: Cell, sessions: Sequence[int], runs: int) -> float:
        """Seconds of `runs` runs with each number of sessions, which share this machine's cores."""
        run_s = (PREFILL_PASSES + cell.new_tokens) * self.token_s(cell)
        return 2 * START_S + runs * sum(run_s * max(1.0, number / 4) for number in sessions)

    def limit_s(self, cell: Cell) -> float:
        """After which a cell is given up."""
        return LIMIT_S + LIMIT_FACTOR * self.cell_s(cell)
