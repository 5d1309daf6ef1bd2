from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from aeonflow.errors import PlanError, UnsupportedError
from aeonflow.kv_options import KvOptions, parse_kv_options
from host.plan import (
    DeclaredAttention,
    Geometry,
    Machine,
    Plan,
    StationSpec,
    WeightSizes,
    check,
    make_plan,
    parse_roles,
    plan_cost,
    weights_from_geometry,
    weights_from_manifest,
)

SMOLLM2 = Geometry(30, 576, 9, 3, 64, 1536, 49_152, 8192)
WEIGHTS = weights_from_geometry(SMOLLM2)
FRAME = 10 + 48


@pytest.mark.parametrize(
    ("plan", "route", "hops"),
    [
        ("solo", "chain", 0),
        ("solo", "relay", 0),
        ("layers:1", "chain", 2),
        ("layers:2", "chain", 3),
        ("layers:30", "chain", 31),
        ("layers:3+shards=8", "chain", 6),
        ("trisplit", "chain", 93),
        ("trisplit", "relay", 184),
        ("trisplit+shards=8", "chain", 93),
        ("trisplit+shards=8", "relay", 184),
        ("ffslice:2", "chain", 63),
        ("ffslice:8", "chain", 63),
        ("ffslice:2+shards=8", "chain", 63),
        ("ffslice:4", "relay", 124),
        ("trisplit:per-layer", "chain", 93),
        ("trisplit:per-layer", "relay", 184),
    ],
)
def test_hops_a_token_of_thirty_layers(plan: str, route: str, hops: int) -> None:
    assert plan_cost(make_plan(plan, 30), SMOLLM2, WEIGHTS, route=route).hops_per_token == hops


def test_bytes_of_a_token_are_those_of_the_frames_that_cross_processes() -> None:
    hidden, ffn, logits = 4 * 576, 4 * 1536, 4 * 49_152
    chain = plan_cost(make_plan("layers:2", 30), SMOLLM2, WEIGHTS)
    assert chain.bytes_per_token == (FRAME + 4) + (FRAME + hidden) + (FRAME + logits)
    trisplit = plan_cost(make_plan("trisplit", 30), SMOLLM2, WEIGHTS)
    layer = 2 * (FRAME + hidden) + (FRAME + ffn) + (FRAME + hidden)
    assert trisplit.bytes_per_token == (FRAME + 4) + (FRAME + hidden) + 30 * layer + (FRAME + logits)
    sliced = plan_cost(make_plan("ffslice:4", 30), SMOLLM2, WEIGHTS)
    hops_inside = 29 * 8 + 9  # n and f of every slice; h stays with attn, after the last layer it goes to the head
    assert sliced.bytes_per_token == (FRAME + 4) + (1 + hops_inside) * (FRAME + hidden) + (FRAME + logits)
    relay = plan_cost(make_plan("trisplit", 30), SMOLLM2, WEIGHTS, route="relay")
    relayed = (2 * FRAME + 3 * hidden + 48) + (2 * FRAME + hidden + ffn) + (2 * FRAME + 48 + 2 * hidden + ffn)
    ends = (2 * FRAME + 4 + hidden) + (2 * FRAME + hidden + logits)
    assert relay.bytes_per_token == 30 * relayed + ends


def test_head_shards_on_one_station_take_x_from_one_message() -> None:
    first = StationSpec("first", parse_roles("embed,block:0-29"))
    ends = StationSpec("ends", parse_roles("head:0/2,head:1/2"))
    cost = plan_cost(check(Plan("two heads", 30, (first, ends))), SMOLLM2, WEIGHTS)
    assert cost.bytes_per_token == (FRAME + 4) + (FRAME + 4 * 576) + (2 * FRAME + 4 * 49_152)


def test_time_of_a_token_follows_the_formulas() -> None:
    machine = Machine(weights_byte_s=1e-10, call_s=1e-5, hop_s=2e-3)
    n, latency = 30, machine.hop_s
    compute = {
        name: plan_cost(make_plan(name, n), SMOLLM2, WEIGHTS, machine=machine) for name in ("trisplit", "layers:5")
    }
    assert compute["trisplit"].token_s == pytest.approx((3 * n + 3) * latency + compute["trisplit"].compute_s)
    assert compute["layers:5"].token_s == pytest.approx((5 + 1) * latency + compute["layers:5"].compute_s)
    for slices in (2, 8):
        found = plan_cost(make_plan(f"ffslice:{slices}", n), SMOLLM2, WEIGHTS, machine=machine)
        ffn_s = n * machine.call_s + sum(WEIGHTS.gate_up + WEIGHTS.down) * machine.weights_byte_s / slices
        others_s = (n + 2) * machine.call_s + (sum(WEIGHTS.attn) + WEIGHTS.head) * machine.weights_byte_s
        assert found.token_s == pytest.approx((2 * n + 3) * latency + ffn_s + others_s)
        assert {s.weight_bytes for s in found.stations[1:-1]} == {sum(WEIGHTS.gate_up + WEIGHTS.down) // slices}
    relay = plan_cost(make_plan("trisplit", n), SMOLLM2, WEIGHTS, route="relay", machine=machine)
    assert relay.token_s == pytest.approx((6 * n + 4) * latency + relay.compute_s)


def test_a_slow_link_adds_the_bytes_on_the_path() -> None:
    machine = Machine(hop_s=0.0, link_byte_s=1e-6)
    cost = plan_cost(make_plan("layers:2", 30), SMOLLM2, WEIGHTS, machine=machine)
    assert cost.token_s == pytest.approx(cost.compute_s + cost.bytes_per_token * 1e-6)


def test_memory_of_a_station_is_weights_kv_and_process() -> None:
    cost = plan_cost(make_plan("trisplit", 30), SMOLLM2, WEIGHTS, context=1000, machine=Machine(process_bytes=7))
    by_name = {station.name: station for station in cost.stations}
    assert by_name["attn"].kv_bytes == 30 * 1000 * 2 * 3 * 64 * 4
    assert by_name["down"].kv_bytes == 0
    assert by_name["down"].weight_bytes == sum(WEIGHTS.down)
    assert by_name["attn"].total_bytes == by_name["attn"].weight_bytes + by_name["attn"].kv_bytes + 7


def test_an_ffn_too_narrow_for_its_slices_is_refused_with_the_numbers() -> None:
    narrow = msgspec.structs.replace(SMOLLM2, ffn_size=100)
    assert plan_cost(make_plan("ffslice:4", 30), narrow, WEIGHTS).hops_per_token == 63
    with pytest.raises(PlanError, match=r"ffn-0: ffn:0-29:0/8 .* 100 columns are 4 blocks of 32: at most 4 slices"):
        plan_cost(make_plan("ffslice:8", 30), narrow, WEIGHTS)


def test_slices_on_one_station_take_turns() -> None:
    two = StationSpec("ffn", parse_roles("ffn:0-29:0/2,ffn:0-29:1/2"))
    others = StationSpec("others", parse_roles("embed,attn:0-29,head"))
    apart = plan_cost(make_plan("ffslice:2", 30), SMOLLM2, WEIGHTS, machine=Machine(hop_s=0.0))
    together = plan_cost(check(Plan("two", 30, (others, two))), SMOLLM2, WEIGHTS, machine=Machine(hop_s=0.0))
    ffn_s = apart.stations[1].compute_s
    assert together.token_s == pytest.approx(apart.token_s + ffn_s)


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(PlanError, match="context 8193: the model holds 1 to 8192"):
        plan_cost(make_plan("solo", 30), SMOLLM2, WEIGHTS, context=8193)


def test_a_plan_slower_than_fewer_stations_is_warned_about() -> None:
    slow = plan_cost(make_plan("trisplit", 30), SMOLLM2, WEIGHTS, machine=Machine(hop_s=20e-3))
    assert len(slow.warnings) == 1
    assert "with solo" in slow.warnings[0]
    assert plan_cost(make_plan("solo", 30), SMOLLM2, WEIGHTS).warnings == ()
    quick = Machine(hop_s=1e-6, call_s=0.0)
    assert plan_cost(make_plan("trisplit", 30), SMOLLM2, WEIGHTS, machine=quick).warnings == ()


def test_stations_that_do_not_fit_are_named_and_only_plans_that_fit_are_offered() -> None:
    machine = Machine(hop_s=20e-3, process_bytes=1 << 20, memory_bytes=60 << 20)
    cost = plan_cost(make_plan("layers:2", 30), SMOLLM2, WEIGHTS, context=1024, machine=machine)
    assert [w.split(" needs ")[0] for w in cost.warnings] == ["station layers-0", "station layers-1"]
    split = plan_cost(make_plan("trisplit:per-layer", 30), SMOLLM2, WEIGHTS, context=1024, machine=machine)
    assert any("with layers:" in warning and "with solo" not in warning for warning in split.warnings)


def test_shared_cores_bound_what_shards_and_sessions_gain() -> None:
    alone = plan_cost(make_plan("trisplit+shards=8", 30), SMOLLM2, WEIGHTS)
    shared = plan_cost(make_plan("trisplit+shards=8", 30), SMOLLM2, WEIGHTS, machine=Machine(cores=2))
    assert shared.token_s > alone.token_s
    assert shared.ceiling_tok_s == pytest.approx(2 / shared.compute_s)


def test_an_unknown_route_is_refused() -> None:
    with pytest.raises(PlanError, match="routes are chain and relay"):
        plan_cost(make_plan("solo", 30), SMOLLM2, WEIGHTS, route="ring")


def test_the_result_is_json() -> None:
    cost = plan_cost(make_plan("layers:2", 30), SMOLLM2, WEIGHTS)
    printed = json.loads(json.dumps(msgspec.to_builtins(cost)))
    assert printed["stations"][1]["roles"] == "block:15-29,head"


def test_sizes_come_from_the_manifest_and_a_tied_head_reads_embeds_file() -> None:
    files = [{"role": "embed", "layer": 0, "bytes": 100}, {"role": "head", "layer": 0, "bytes": 3}]
    files += [
        {"role": role, "layer": layer, "bytes": 10 + layer} for role in ("attn", "gate_up", "down") for layer in (0, 1)
    ]
    sizes = weights_from_manifest({"tied_head": True, "files": files}, 2)
    assert (sizes.embed, sizes.head, sizes.of_layer_role("block", 1)) == (100, 103, 33)
    assert sizes.shared_ends == 100
    with pytest.raises(PlanError, match="no weights for attn of layer 2"):
        weights_from_manifest({"tied_head": True, "files": files}, 3)


def test_a_station_with_both_tied_ends_holds_their_matrix_once() -> None:
    tied = WeightSizes(embed=800, head=816, attn=(1,) * 30, gate_up=(1,) * 30, down=(1,) * 30, shared_ends=800)

    def ends_of(plan: str) -> list[int]:
        cost = plan_cost(make_plan(plan, 30), SMOLLM2, tied)
        return [station.weight_bytes for station in cost.stations if station.name.startswith("ends")]

    assert ends_of("trisplit") == [816]
    assert ends_of("trisplit+shards=2") == [408, 408]
    assert ends_of("trisplit+embed-shards=2") == [400 + 816, 400]


SIZES: list[tuple[dict[str, Any], float]] = [
    ({"kv": "f16"}, 2.0), ({"kv": "q8"}, 3.43), ({"kv": "q8", "exact_recent": 0}, 3.65), ({"kv": "q4"}, 5.5),
    ({"max_rows": 1000, "evict": "recent"}, 4.0), ({"window": 400}, 4000 / 1000), ({"o1": {"m": 16, "w": 64}}, 7.0),
]  # fmt: skip


@pytest.mark.parametrize(("options", "smaller"), SIZES)
def test_kv_is_counted_as_it_is_kept(options: dict[str, Any], smaller: float) -> None:
    kv = parse_kv_options(options)
    cost, exact = (
        plan_cost(make_plan("layers:2", 30), SMOLLM2, WEIGHTS, context=4000, kv=how) for how in (kv, KvOptions())
    )
    for station, plain in zip(cost.stations, exact.stations, strict=True):
        assert plain.kv_bytes / station.kv_bytes == pytest.approx(smaller, rel=0.12)
        assert station.total_bytes == station.weight_bytes + station.kv_bytes + station.process_bytes
    assert cost.kv == kv.shown()


def test_layers_that_slide_count_their_window_only() -> None:
    sliding = msgspec.structs.replace(SMOLLM2, attention=DeclaredAttention((100, 0) * 15))
    (cost,) = plan_cost(make_plan("solo", 30), sliding, WEIGHTS, context=4000).stations
    row = 2 * 3 * 64 * 4
    assert 15 * 4000 * row < cost.kv_bytes < 15 * (4000 + 400) * row
    with pytest.raises(UnsupportedError, match="window=200 and the model's own window of 100 rows at layer 0"):
        plan_cost(make_plan("solo", 30), sliding, WEIGHTS, kv=parse_kv_options({"window": 200}))


def test_geometry_names_what_a_card_lacks() -> None:
    card = msgspec.to_builtins(SMOLLM2)
    assert Geometry.from_card(card | {"name": "x"}) == SMOLLM2
    sliding = card | {"attention": {"windows": [16] * 30, "softcap": 3.0}}
    assert Geometry.from_card(sliding).attention.windows == (16,) * 30
    del card["ffn_size"]
    with pytest.raises(PlanError, match="lacks ffn_size"):
        Geometry.from_card(card)
