"""Which layers a route seeds: what is refused, and by which words; reports, ranking and the gate's say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from aeonflow.messages import Route
from host import Engine
from host.errors import HostError, InvalidRequestError, UnsupportedOptionError
from host.pairx.counters import seeds_status
from host.pairx.gate_file import GateResult, Verdict, coalesces_by_default, load_gate, save_gate
from host.pairx.lines import SeedLines
from host.pairx.options import Layers, PairX
from host.pairx.report import LayerProbe, ProbeReport, SetProbe, load_report, report_path, save_report
from host.pairx.seeding import NO_SEEDING, Seeding, draft_gain, resolve
from host.plan import make_plan, to_route
from host.speculate.counts import SourceCounts

TRISPLIT = make_plan("trisplit", 6)


def resolved(mode: str, layers: str | None = None, plan: Any = TRISPLIT, **changes: Any) -> Seeding:
    given: dict[str, Any] = {
        "residual": "sequential", "hidden_size": 64, "report": None, "gate_passed": False, "prefill_chunk": None,
    }  # fmt: skip
    approximate = changes.pop("approximate", False)
    asked = PairX(mode=mode, layers=layers, approximate=approximate)
    asked.check()
    return resolve(asked, plan, **{**given, **changes})


def effect(**changes: Any) -> dict[str, Any]:
    return {"top1": 0.9, "kl": 0.1, "perplexity_ratio": 1.1, "alpha": 0.9, **changes}


def report(ranking: tuple[int, ...], sets: tuple[SetProbe, ...] = ()) -> ProbeReport:
    layers = tuple(LayerProbe(layer=layer, max_abs=4.0, relative=0.1, **effect()) for layer in sorted(ranking))
    return ProbeReport(
        version=1, model="m", fingerprint="f" * 8, seed="h", num_layers=6, num_texts=1, num_tokens=9, perplexity=12.0,
        layers=layers, sets=sets, ranking=ranking,
    )  # fmt: skip


@pytest.mark.parametrize(("text", "layers"), [("all", ()), ("2", (2,)), ("5,1-3,2", (1, 2, 3, 5)), ("auto:4", ())])
def test_layers_are_all_a_list_or_a_number_of_the_least_harmed(text: str, layers: tuple[int, ...]) -> None:
    found = Layers.parse(text)
    assert found.listed == layers
    assert found.is_all == (text == "all")
    assert found.count == (4 if text.startswith("auto") else 0)


@pytest.mark.parametrize("text", ["", "every", "3-1", "1,,2", "auto:", "auto:0", "-1", "2-"])
def test_what_are_no_layers_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="pair_x_layers"):
        Layers.parse(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "often"}, "pair_x 'often': allowed is off, shadow, bypass, draft, live"),
        ({"layers": "2"}, "pair_x_layers 2: without pair_x no layer takes a seed"),
        ({"seed": "x"}, "pair_x_seed x: without pair_x"),
        ({"mode": "shadow", "layers": "0-2"}, "layer 0 has no layer below it"),
        ({"mode": "shadow", "seed": "y"}, "pair_x_seed 'y': allowed is h, x"),
        ({"mode": "bypass", "seed": "x"}, "pair_x_seed x with pair_x bypass"),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedOptionError), match=words):
        PairX(**options).check()


@pytest.mark.parametrize("plan", ["solo", "layers:3", "ffslice:2"])
async def test_a_plan_without_the_three_roles_is_refused_before_anything_starts_naming_those_that_have_them(
    plan: str,
) -> None:
    with pytest.raises(UnsupportedOptionError, match=r"pair_x shadow with plan .*: trisplit, trisplit:per-layer"):
        async with Engine.launch(model="synthetic:layers=3,hidden=64,vocab=512", plan=plan, pair_x="shadow"):
            raise AssertionError("started")


def test_all_layers_above_the_first_are_seeded_and_of_a_draft_those_above_the_second() -> None:
    assert resolved("off") is NO_SEEDING
    assert resolved("shadow").layers == resolved("draft", "all").layers == (1, 2, 3, 4, 5)
    assert resolved("draft").layers == (2, 3, 4, 5)
    assert resolved("bypass", "3,5").layers == (3, 5)


def test_of_a_mixed_plan_only_layers_that_are_cut_like_the_one_below_are_seeded(tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    path.write_text(
        '[[station]]\nname = "a"\nroles = "embed,block:0-2,head"\n'
        '[[station]]\nname = "b"\nroles = "attn:3-5,gate_up:3-5"\n[[station]]\nname = "c"\nroles = "down:3-5"\n'
    )
    plan = make_plan(str(path), 6)
    assert resolved("shadow", plan=plan).layers == (4, 5)
    with pytest.raises(InvalidRequestError, match=r"layer 2 cannot take a seed on plan .*; layers 4 to 5 can"):
        resolved("shadow", "2,4", plan=plan)


def test_auto_takes_the_least_harmed_of_the_report_and_is_refused_without_one() -> None:
    ranked = report((4, 2, 5, 3, 1))
    assert resolved("shadow", "auto:3", report=ranked).layers == (2, 4, 5)
    with pytest.raises(InvalidRequestError, match="run aeonflow pairx probe first"):
        resolved("shadow", "auto:3")
    with pytest.raises(InvalidRequestError, match="auto:6: 5 layers can take a seed"):
        resolved("shadow", "auto:6", report=ranked)


def test_a_draft_leaves_out_the_layers_that_cost_it_more_agreement_than_a_hop() -> None:
    def sets(alpha_of_four: float) -> tuple[SetProbe, ...]:
        return (
            SetProbe(layers=(1, 2, 3, 4, 5), **effect(alpha=0.6)),
            SetProbe(layers=(2, 3, 4, 5), **effect(alpha=alpha_of_four)),
        )

    assert resolved("draft", report=report((5, 4, 3, 2, 1), sets(0.9))).layers == (2, 3, 4, 5)
    assert resolved("draft", report=report((5, 4, 3, 2, 1), sets(0.61))).layers == (1, 2, 3, 4, 5)
    # 30 layers, all but one seeded: two hops a layer and one more, ρ = 65/93 (docs/pair-x.md).
    assert draft_gain(0.83, 28, 30) == pytest.approx(1 / (1 - 0.83 * (1 - 65 / 93)))


def test_live_is_refused_unless_the_model_was_built_for_it_the_gate_passed_or_it_is_asked_for_all_the_same() -> None:
    with pytest.raises(
        UnsupportedOptionError, match=r"residual is 'sequential', not ladder or parallel.*--approximate"
    ):
        resolved("live")
    for changes in ({"residual": "ladder"}, {"residual": "parallel"}, {"gate_passed": True}, {"approximate": True}):
        assert resolved("live", **changes).layers == (1, 2, 3, 4, 5)


def test_live_on_a_model_that_was_not_built_for_it_says_how_far_it_drifts() -> None:
    all_five = SetProbe(layers=(1, 2, 3, 4, 5), **effect(perplexity_ratio=199.4, top1=0.1, kl=4.6))
    probed = report((5, 4, 3, 2, 1), (all_five,))
    said = "5 layers take a seed that the model was not built for: perplexity × 199, top-1 0.10, KL 4.6, measured"
    assert resolved("live", approximate=True, report=probed).drift == said
    assert resolved("live", "2", approximate=True, report=probed).drift.endswith("KL 0.1, measured")
    assert resolved("live", "2-3", approximate=True, report=probed).drift.endswith("measured with 5")
    assert "aeonflow pairx probe" in resolved("live", approximate=True).drift
    assert resolved("live", residual="ladder").drift == resolved("shadow").drift == ""


def test_prefill_chunks_whose_seeds_are_more_than_a_frame_are_refused_by_name() -> None:
    assert resolved("shadow", hidden_size=5376, prefill_chunk=780).max_rows(5376) == 780
    with pytest.raises(InvalidRequestError, match=r"prefill_chunk 781 with pair_x shadow: .* holds 780 rows"):
        resolved("shadow", hidden_size=5376, prefill_chunk=781)


def test_a_route_says_its_mode_and_a_result_its_drafts() -> None:
    seeding = Seeding("draft", (2, 3), "x")
    route = seeding.applied_to(to_route(TRISPLIT, 1, ["ws://s"] * len(TRISPLIT.stations)))
    assert isinstance(route, Route)
    assert (route.pair_x, route.seeded, route.seed) == ("draft", (2, 3), "x")
    told = seeding.told(SourceCounts(drafted=10, accepted=8), num_rows=40)
    assert told == {"mode": "draft", "layers": [2, 3], "seeded": 10, "drafted": 10, "accepted": 8, "diverged": 2}
    assert NO_SEEDING.told(SourceCounts(), 40)["seeded"] == 0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AEONFLOW_HOME", str(tmp_path))
    return tmp_path


def test_a_report_is_bound_to_the_fingerprint_the_version_and_the_seed(home: Path) -> None:
    kept = report((2, 1))
    path = save_report(kept)
    assert path == home / "pairx" / "ffffffff.h.json" == report_path("ffffffff")
    assert load_report("ffffffff") == kept
    assert load_report("eeeeeeee") is load_report("ffffffff", "x") is None
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(kept, version=0)))
    assert load_report("ffffffff") is None
    path.write_text("{")
    with pytest.raises(HostError, match=r"cannot be read: .*aeonflow pairx probe"):
        load_report("ffffffff")


def test_the_gate_opens_live_only_when_the_seeds_of_all_layers_passed_and_decides_on_coalescing(home: Path) -> None:
    def result(*passed: bool) -> GateResult:
        names = ("coalescing", "seeds of 2 layers", "seeds of all layers", "token wall")
        verdicts = tuple(
            Verdict(name=name, measured=1.0, limit=2.0, passed=ok) for name, ok in zip(names, passed, strict=True)
        )
        return GateResult(version=1, model="m", fingerprint="f" * 8, plan="trisplit", verdicts=verdicts)

    assert load_gate("ffffffff") is None
    assert coalesces_by_default()
    save_gate(result(False, True, False, True))
    found = load_gate("ffffffff")
    assert found is not None
    assert not found.permits_live
    assert not coalesces_by_default()
    save_gate(result(True, True, True, False))
    found = load_gate("ffffffff")
    assert found is not None
    assert found.permits_live
    assert coalesces_by_default()
    (home / "pairx" / "coalescing.json").write_text("nonsense")
    assert coalesces_by_default(), "a file that is broken says nothing"


OPEN = SeedLines(lambda: 0.0).to_json()


def test_status_adds_both_ends_and_says_aloud_what_is_missing_or_was_dropped() -> None:
    stats: list[dict[str, Any]] = [
        {"seed_lines": {"145": {"sent": 5, "received": 1}}, "seeds_dropped": 1, "seeds_late": 1, "seed_slots": 2},
        {"seed_lines": {"145": {"sent": 0, "received": 2}}, "shadow": {"10": {"count": 2}, "2": {"count": 1}}},
    ]
    told = seeds_status(Seeding("shadow", (1, 2)), OPEN, [3, 0, 0, 0, 0, 0, 0], 7 * [0], stats)
    assert told["lines"] == {
        "123": {"sent": 3, "received": 0, "missing": 3},
        "145": {"sent": 5, "received": 3, "missing": 2},
    }
    assert (told["late"], told["dropped"], told["slots"]) == (1, 1, 2)
    assert list(told["shadow"]) == ["2", "10"]
    assert told["problem"] == (
        "3 seeds of line 123 were sent and have not come; 2 seeds of line 145 were sent and have not come; "
        "1 seeds were dropped, 0 slots expired"
    )
