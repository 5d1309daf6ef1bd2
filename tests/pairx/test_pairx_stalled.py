"""When a pass that stands still is taken for one whose seed was lost, and when it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aeonflow.errors import SeedError
from aeonflow.messages import Carrier, Heartbeat, Whereabouts
from aeonflow.tensors import Want
from host.links import LinkState
from host.pairx import stalled
from host.pairx.seeding import Seeding
from host.pairx.stalled import StalledPasses
from host.plan import make_plan, to_route
from host.sequence import TokenSequence

LAYERS = 3
PLAN = make_plan("trisplit:per-layer", LAYERS)
PATIENCE_S = 2.0


class Fleet:
    """Stations of which one, `behind`, has not passed the pass on. It stands for real links: `look` asks them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mode: str = "bypass") -> None:
        self.route = Seeding(mode, (1, 2)).applied_to(to_route(PLAN, 1, ["ws://s"] * len(PLAN.stations)))
        self.behind = "attn-2"
        self.silent: set[str] = set()
        self.heartbeat = Heartbeat()
        self.sequence = TokenSequence(9, self, lambda: 0.0)  # type: ignore[arg-type]
        self.sequence.send([1, 2, 3], Want.LAST)
        self.passes = StalledPasses(PATIENCE_S)
        monkeypatch.setattr(stalled, "answers", self.answers)

    def send(self, *args: Any) -> None:
        """A pass leaves."""

    @property
    def stations(self) -> list[Any]:
        link = SimpleNamespace(remote_heartbeat=self.heartbeat)
        return [SimpleNamespace(name=s.name, state=LinkState.READY, link=link) for s in PLAN.stations]

    async def answers(self, *args: Any) -> dict[int, Whereabouts]:
        found, has_come = {}, True
        for carrier in sorted(self.route.carriers, key=_place):
            name = PLAN.stations[carrier.station].name
            has_come = has_come and name != self.behind
            place = (carrier.role, carrier.hi, 3 if has_come else 0)
            passed = (*found[carrier.station].passed, place) if carrier.station in found else (place,)
            found[carrier.station] = Whereabouts(9, 1, True, 0, passed)
        return {index: reply for index, reply in found.items() if PLAN.stations[index].name not in self.silent}

    async def looks(self, *at_s: float) -> list[SeedError | None]:
        return [await self.passes.look(self.stations, self.sequence, now) for now in at_s]


def _place(carrier: Carrier) -> tuple[int, int]:
    order = ("embed", "attn", "gate_up", "down", "head")
    return {"embed": -1, "head": LAYERS}.get(carrier.role, carrier.lo), order.index(carrier.role)


async def test_a_pass_in_one_place_for_long_enough_before_an_idle_station_has_lost_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    *before, found = await Fleet(monkeypatch).looks(3.0, 4.0, 5.0)
    assert before == [None, None]
    assert "position 2 has stood still for 2.0 s: a residual seed for attn of layer 2 did not come to" in str(found)


async def test_a_pass_that_moves_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch)
    assert await fleet.looks(3.0) == [None]
    fleet.behind = "attn-1"
    assert await fleet.looks(6.0) == [None]
    fleet.behind = "attn-2"
    assert await fleet.looks(9.0, 10.0) == [None, None]
    fleet.sequence.restart(0)
    fleet.sequence.send([1, 2, 3], Want.LAST)
    assert await fleet.looks(12.0) == [None], "another epoch"


@pytest.mark.parametrize("busy", [Heartbeat(queued=1), Heartbeat(busy_s=0.5)])
async def test_a_station_at_work_is_waited_for(busy: Heartbeat, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch)
    fleet.heartbeat = busy
    assert await fleet.looks(3.0, 6.0, 9.0) == [None, None, None]


async def test_a_station_that_does_not_answer_or_takes_no_seed_there_is_the_deadlines_affair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(monkeypatch)
    fleet.silent = {"attn-2"}
    assert await fleet.looks(3.0, 6.0) == [None, None]
    fleet.silent = set()
    for fleet.behind in ("gate_up-1", "down-2", "ends", "attn-0"):
        assert await fleet.looks(9.0, 12.0) == [None, None], fleet.behind


async def test_only_passes_with_canonical_seeds_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, is_due in (("off", False), ("shadow", False), ("draft", False), ("bypass", True), ("live", True)):
        fleet = Fleet(monkeypatch, mode)
        assert [one.session for one in fleet.passes.due({9: fleet.sequence}, 2.5)] == ([9] if is_due else [])
        assert list(fleet.passes.due({9: fleet.sequence}, 1.0)) == []
        live = Fleet(monkeypatch, "live")
    live.behind = "gate_up-1"
    assert isinstance((await live.looks(3.0, 6.0))[1], SeedError)
