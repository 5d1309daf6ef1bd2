from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeonflow.errors import PlanError, UnsupportedError
from aeonflow.messages import Carrier, Hello
from aeonflow.route import holder, successors
from aeonflow.tensors import Port
from host.plan import Plan, Role, StationSpec, check, from_hellos, make_plan, parse_role, to_carriers, to_route, to_toml
from host.plan.roles import FFN_SLICES, LAYER_ROLES, MAX_SHARDS, SHARDED_ROLES


def roles_by_station(plan: Plan) -> dict[str, str]:
    return {station.name: station.roles_text for station in plan.stations}


def plan_of(num_layers: int, **stations: str) -> Plan:
    specs = tuple(
        StationSpec(name, tuple(parse_role(text) for text in roles.split(","))) for name, roles in stations.items()
    )
    return Plan("test", num_layers, specs)


def test_solo_is_one_embedded_station_with_every_role() -> None:
    plan = make_plan("solo", 30)
    assert roles_by_station(plan) == {"solo": "embed,block:0-29,head"}
    assert plan.embedded


def test_solo_can_shard_its_ends_inside_one_process() -> None:
    assert roles_by_station(make_plan("solo+shards=2", 4)) == {
        "solo": "embed:0/2,embed:1/2,block:0-3,head:0/2,head:1/2"
    }


def test_layers_puts_embed_with_the_first_station_and_head_with_the_last() -> None:
    assert roles_by_station(make_plan("layers:3", 10)) == {
        "layers-0": "embed,block:0-2",
        "layers-1": "block:3-5",
        "layers-2": "block:6-9,head",
    }


def test_layers_1_is_one_process_of_its_own() -> None:
    plan = make_plan("layers:1", 4)
    assert roles_by_station(plan) == {"layers-0": "embed,block:0-3,head"}
    assert not plan.embedded


def test_trisplit_is_four_processes() -> None:
    assert roles_by_station(make_plan("trisplit", 30)) == {
        "attn": "attn:0-29",
        "gate_up": "gate_up:0-29",
        "down": "down:0-29",
        "ends": "embed,head",
    }


def test_trisplit_per_layer_has_three_processes_a_layer_and_the_ends() -> None:
    plan = make_plan("trisplit:per-layer", 30)
    assert len(plan.stations) == 91
    assert roles_by_station(plan)["gate_up-07"] == "gate_up:7-7"


def test_ffslice_is_attention_the_slices_and_the_ends() -> None:
    assert roles_by_station(make_plan("ffslice:2", 30)) == {
        "attn": "attn:0-29",
        "ffn-0": "ffn:0-29:0/2",
        "ffn-1": "ffn:0-29:1/2",
        "ends": "embed,head",
    }
    assert len(make_plan("ffslice:8+shards=2", 4).stations) == 1 + 8 + 2


def test_shards_cut_both_ends_and_each_end_can_be_cut_alone() -> None:
    both = roles_by_station(make_plan("trisplit+shards=2", 4))
    assert (both["ends-0"], both["ends-1"]) == ("embed:0/2,head:0/2", "embed:1/2,head:1/2")
    mixed = roles_by_station(make_plan("trisplit+embed-shards=1+head-shards=2", 4))
    assert (mixed["ends-0"], mixed["ends-1"]) == ("embed,head:0/2", "head:1/2")


def test_sharded_ends_of_a_layers_plan_are_stations_of_their_own() -> None:
    stations = roles_by_station(make_plan("layers:2+head-shards=2", 4))
    assert stations == {
        "layers-0": "embed,block:0-1",
        "layers-1": "block:2-3",
        "ends-0": "head:0/2",
        "ends-1": "head:1/2",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quadsplit", "solo, layers:N, trisplit"),
        ("layers", "solo, layers:N, trisplit"),
        ("layers:0", "from 1 to 30"),
        ("layers:31", "from 1 to 30"),
        ("layers:٣", "from 1 to 30"),
        ("ffslice:3", "'3' ffn slices; 2, 4, 8 are possible"),
        ("ffslice:16", "2, 4, 8 are possible"),
        ("ffslice", "neither a preset"),
        ("trisplit+shards", "from 1 to 32"),
        ("trisplit+shards=33", "from 1 to 32"),
        ("trisplit+mirrors=2", r"\+mirrors=2 is unknown"),
        ("trisplit+shards=2+head-shards=4", "head_shards more than once"),
        ("", "neither a preset"),
        ("nowhere.toml", "cannot be read"),
    ],
)
def test_a_preset_that_does_not_exist_is_refused_with_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        make_plan(text, 30)


@pytest.mark.parametrize("text", ["trisplit+spares=1", "trisplit+wardens", "layers:2+spares"])
def test_a_preset_that_is_not_built_yet_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"not supported yet; supported are solo"):
        make_plan(text, 30)


@pytest.mark.parametrize("role", ["warden", "spare"])
def test_a_role_that_is_not_built_yet_parses_and_is_refused_by_name(role: str) -> None:
    assert str(parse_role(role)) == role
    with pytest.raises(UnsupportedError, match=f"station b: role {role} is not supported yet; this version runs embed"):
        check(plan_of(4, a="embed,block:0-3,head", b=role))


@st.composite
def any_role(draw: st.DrawFn) -> Role:
    name = draw(st.sampled_from((*LAYER_ROLES, *SHARDED_ROLES)))
    lo = draw(st.integers(0, 200)) if name in LAYER_ROLES else 0
    hi = lo + draw(st.integers(0, 200)) if name in LAYER_ROLES else 0
    parts = 1
    if name == "ffn":
        parts = draw(st.sampled_from(FFN_SLICES))
    elif name in SHARDED_ROLES:
        parts = draw(st.integers(1, MAX_SHARDS))
    return Role(name, lo, hi, draw(st.integers(0, parts - 1)), parts)


@given(any_role())
def test_a_role_reads_back_from_its_text(role: Role) -> None:
    assert parse_role(str(role)) == role


def test_one_layer_may_be_written_as_one_number() -> None:
    assert parse_role("attn:7") == Role("attn", 7, 7)


@pytest.mark.parametrize(
    "text",
    ["attn", "attn:3-1", "attn:-1", "attn:a-b", "embed:8/8", "embed:1-2", "head:0/33", "ffn:0-3", "ffn:0-3:0/3",
     "warden:1", "moe:0-3", "", "attn:0-1:0/2"],
)  # fmt: skip
def test_a_role_that_is_not_understood_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(PlanError, match=re.escape(repr(text))):
        parse_role(text)


@pytest.mark.parametrize(
    ("stations", "says"),
    [
        ({"a": "embed,block:0-2,head"}, r"no station carries block \(or attn, gate_up and down\) of layer 3"),
        ({"a": "embed,block:0-3,head", "b": "block:2-3"}, "block of layers 2-3 .* more than once: layer 2 by a, b"),
        ({"a": "embed,block:0-3,head", "b": "gate_up:1-1"}, r"layer 1 is .* whole by a \(block\) and in part by b"),
        (
            {"a": "embed,block:0-3,head", "b": "ffn:2-3:0/2"},
            r"layer 2 has ffn slices \(b\) and block \(a\)",
        ),
        (
            {"a": "embed,head,attn:0-3,gate_up:0-3,down:0-3", "b": "ffn:3-3:0/2", "c": "ffn:3-3:1/2"},
            r"layer 3 has ffn slices \(b\) and gate_up \(a\)",
        ),
        (
            {"a": "embed,head,attn:0-3", "b": "ffn:0-3:0/2", "c": "ffn:0-1:1/2"},
            "no station carries ffn slice 1/2 of layers 2-3",
        ),
        (
            {"a": "embed,head", "b": "ffn:0-3:0/2", "c": "ffn:0-3:1/2"},
            "no station carries attn of layers 0-3",
        ),
        (
            {"a": "embed,head,attn:0-3", "b": "ffn:0-3:0/2", "c": "ffn:0-3:1/4"},
            "slices of layer 0 disagree on their number: b says 2, c says 4",
        ),
        (
            {"a": "embed,head,attn:0-3", "b": "ffn:0-3:0/2", "c": "ffn:2-3:0/2"},
            "ffn slice 0/2 of layer 2 is carried twice: by b, c",
        ),
        ({"a": "embed,head,attn:0-3,down:0-3"}, "no station carries gate_up of layers 0-3"),
        ({"a": "embed,head,attn:0-3,gate_up:0-3,down:0-1,down:3-3"}, "no station carries down of layer 2"),
        ({"a": "embed,block:0-4,head"}, "block:0-4 is outside the model, whose layers are 0 to 3"),
        ({"a": "block:0-3,head"}, "has no embed"),
        ({"a": "embed,block:0-3"}, "has no head"),
        ({"a": "embed,block:0-3,head:0/2"}, "head is incomplete: part 1 of 2 missing"),
        ({"a": "embed,block:0-3,head:0/2", "b": "head:0/2"}, "head part 0/2 is carried twice: by a, b"),
        ({"a": "embed,block:0-3,head:0/2", "b": "head:1/3"}, "disagree on their number: a says n=2, b says n=3"),
        ({"a": "embed:0/2,embed:0/2,block:0-3,head"}, "embed part 0/2 is carried twice: by a, a"),
    ],
)  # fmt: skip
def test_an_incomplete_or_doubled_plan_is_refused_with_names(stations: dict[str, str], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        check(plan_of(4, **stations))


def test_names_of_stations_must_be_unique_and_plain() -> None:
    a = StationSpec("a", (Role("embed"), Role("block", 0, 3), Role("head")))
    with pytest.raises(PlanError, match="two stations are called 'a'"):
        check(Plan("test", 4, (a, a)))
    with pytest.raises(PlanError, match="letters, digits"):
        check(Plan("test", 4, (StationSpec("a b/../c", a.roles),)))


def test_a_file_mixes_roles_freely_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    path.write_text(
        """
        [[station]]
        name = "desk"
        roles = ["embed", "block:0-1", "attn:2-3"]
        [[station]]
        name = "shelf"
        roles = "gate_up:2-3, down:2-3, head"
        url = "ws://10.0.0.7:7001"
        """
    )
    plan = make_plan(path, 4)
    assert plan.name == "mixed"
    assert roles_by_station(plan) == {"desk": "embed,block:0-1,attn:2-3", "shelf": "gate_up:2-3,down:2-3,head"}
    assert plan.stations[1].url == "ws://10.0.0.7:7001"
    again = tmp_path / "again.toml"
    again.write_text(to_toml(plan))
    assert make_plan(str(again), 4) == plan


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = 3", "no \\[\\[station\\]\\]"),
        ("[[station]]\nroles = 'embed'", "station 1: a name is needed"),
        ("[[station]]\nname = 'a'", "station 1: roles must be"),
        ("[[station]]\nname = 'a'\nroles = 'embed'\nport = 3", "unknown key 'port'; keys are name, roles, url, host"),
        ("[[station]]\nname = 'a'\nroles = [3]", "list of strings"),
        ("[[station]]\nname = 'a'\nroles = 'embed'\nurl = 'http://x'", "must begin with ws:// or wss://"),
        ("[[station]]\nname = 'a'\nroles = 'embed'\nurl = 'ws://x'\nhost = 'x'", "exclude each other"),
        ("stations = []", "unknown key 'stations'"),
        ("station = 3", r"written \[\[station\]\]"),
        ("[[station", "is not TOML"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(PlanError, match=says):
        make_plan(path, 4)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="is not TOML"):
        make_plan(path, 4)


def test_carriers_are_the_table_that_routes_are_made_of() -> None:
    plan = make_plan("trisplit+head-shards=2", 2)
    assert to_carriers(plan) == (
        Carrier(0, "attn", 0, 1),
        Carrier(1, "gate_up", 0, 1),
        Carrier(2, "down", 0, 1),
        Carrier(3, "embed"),
        Carrier(3, "head", part=0, parts=2),
        Carrier(4, "head", part=1, parts=2),
    )
    route = to_route(plan, 9, [f"ws://{station.name}" for station in plan.stations])
    assert holder(route, "down", 1).station == 2
    assert [(hop.station, hop.port) for hop in successors(route, "attn", 0)] == [(1, Port.N), (2, Port.H)]
    assert [hop.station for hop in successors(route, "down", 1)] == [3, 4]


def test_hellos_of_running_stations_form_the_plan_they_were_started_from() -> None:
    plan = make_plan("layers:2+shards=2", 6)
    hellos = [Hello(1, s.name, "station", roles=tuple(str(role) for role in s.roles)) for s in plan.stations]
    urls = [f"ws://127.0.0.1:{7000 + i}" for i in range(len(hellos))]
    found = check(from_hellos(hellos, 6, urls=urls))
    assert to_carriers(found) == to_carriers(plan)
    assert [station.url for station in found.stations] == urls


@given(st.integers(1, 64).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), st.integers(1, MAX_SHARDS))
def test_every_preset_carries_each_layer_once(sizes: tuple[int, int], shards: int) -> None:
    num_layers, count = sizes
    for text in (f"layers:{count}", "trisplit", "trisplit:per-layer"):
        plan = make_plan(f"{text}+shards={shards}", num_layers)
        route = to_route(plan, 1, [""] * len(plan.stations))
        carried = [c for c in route.carriers if c.role in ("block", "attn")]
        assert sorted(layer for c in carried for layer in range(c.lo, c.hi + 1)) == list(range(num_layers))
        assert [c.part for c in route.carriers if c.role == "head"] == list(range(shards))
