"""What stations say of drafts in their hello, and what a host does not ask of them then."""

from __future__ import annotations

import msgspec
import pytest

from aeonflow.messages import PROTOCOL_VERSION, DraftOffer, Hello
from host import Engine
from host.errors import UnsupportedOptionError
from host.pairx.offers import check_drafts
from host.pairx.seeding import NO_SEEDING, Seeding
from host.plan import make_plan
from stations.core.drafts import draft_offer
from stations.models.roles import parse_roles
from tests.engine import local_stations
from tests.engine.local_stations import TOKEN, local_fleet

from .conftest import MakeModel

LAYERS = 6
PLAN = make_plan("trisplit:per-layer", LAYERS)
OFFER = DraftOffer(("h", "x"), 3, 15)


def hellos(**changed: DraftOffer | None) -> list[Hello]:
    offers = {station.name: OFFER for station in PLAN.stations} | changed
    return [Hello(PROTOCOL_VERSION, s.name, "station", draft=offers[s.name]) for s in PLAN.stations]


def test_stations_with_a_part_in_drafts_say_what_they_take_of_them() -> None:
    for roles in ("attn:0-1", "gate_up:2", "down:0-5", "embed,head"):
        assert draft_offer(parse_roles(roles, LAYERS)) == OFFER
    assert draft_offer(parse_roles("embed,block:0-5", LAYERS)) is None


@pytest.mark.parametrize(
    ("station", "offer", "why"),
    [
        ("attn-1", None, "takes no drafts"),
        ("gate_up-5", None, "takes no drafts"),
        ("ends", None, "takes no drafts"),
        ("down-3", DraftOffer(("x",), 3, 15), "takes drafts of seed x, not h"),
        ("down-3", DraftOffer(("h",), 2, 15), "takes drafts 2 positions ahead, 3 are needed"),
        ("down-3", DraftOffer(("h",), 3, 0), "lets no draft wait"),
    ],
)
def test_drafts_that_a_station_does_not_take_are_refused_by_its_name(
    station: str, offer: DraftOffer | None, why: str
) -> None:
    with pytest.raises(UnsupportedOptionError, match=f"pair_x draft: station {station} {why}"):
        check_drafts(Seeding("draft", (2, 3, 4, 5)), PLAN, hellos(**{station: offer}))


def test_stations_below_the_fork_and_other_modes_need_no_offer() -> None:
    below = hellos(**{"attn-0": None, "gate_up-0": None, "down-0": None})
    check_drafts(Seeding("draft", (2, 3, 4, 5)), PLAN, below)
    silent = [msgspec.structs.replace(hello, draft=None) for hello in below]
    for seeding in (NO_SEEDING, Seeding("shadow", (1, 2)), Seeding("bypass", (1, 2)), Seeding("live", (1, 2))):
        check_drafts(seeding, PLAN, silent)


async def test_an_engine_refuses_drafts_that_its_stations_do_not_take(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_stations, "draft_offer", lambda spans: None)
    async with local_fleet("trisplit", make_model("layers=4")) as fleet:
        with pytest.raises(UnsupportedOptionError, match="pair_x draft: station attn takes no drafts"):
            async with Engine.connect(fleet.urls, token=TOKEN, transport="websockets", pair_x="draft"):
                pass
