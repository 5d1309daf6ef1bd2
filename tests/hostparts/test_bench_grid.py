"""The grid of `bench trisplit`, its page and pictures, and the named geometries."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from host.bench.grid import WAYS, Outcome, Planned, grid_report, plan_grid, run_grid, solo_answers, tokens_agree
from host.bench.trisplit import Cell, Measured
from host.bench.trisplit_estimate import Estimator
from host.bench.trisplit_files import write_grid
from host.bench.trisplit_models import GEOMETRIES, resolve_model, weight_bytes
from host.bench.trisplit_page import PageCell, write_page
from host.bench.trisplit_png import PlotsMissingError, draw_timeline
from host.bench.trisplit_timeline import Timeline
from host.errors import InvalidRequestError

CARD = {
    "num_layers": 30, "hidden_size": 576, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "ffn_size": 1536,
    "vocab_size": 49152, "context_length": 8192,
}  # fmt: skip


def report(**more: Any) -> dict[str, Any]:
    return {"way": "trisplit chain", "link_delay_ms": 1.0, "token_s": 0.1, "prompts": "chat", "prompt": "sky",
            "token_ids": [1, 2, 3], "machine": {"cpu": "c", "cores": 2}} | more  # fmt: skip


def test_the_grid_has_every_way_at_every_delay_and_fewer_tokens_where_hops_are_slow() -> None:
    planned = plan_grid(Estimator(CARD), (0.2, 69.0), new_tokens=64)
    assert len(planned) == 2 * len(WAYS)
    tokens = {one.cell.link_delay_ms: one.cell.new_tokens for one in planned}
    assert tokens == {0.2: 64, 69.0: 16}
    assert all(one.limit_s > one.estimate_s > 0 for one in planned)


def test_the_estimate_of_a_relay_is_about_twice_that_of_a_chain() -> None:
    estimator = Estimator(CARD)
    chain, relay = Cell(link_delay_ms=20.0), Cell(route="relay", link_delay_ms=20.0)
    assert estimator.token_s(chain) == pytest.approx(93 * 0.02, rel=0.1)
    assert 1.9 < estimator.token_s(relay) / estimator.token_s(chain) < 2.0
    assert estimator.cell_s(relay) > 30 * estimator.token_s(relay)


def test_speedups_are_over_the_relay_of_the_same_delay() -> None:
    reports = [
        report(way="trisplit relay", token_s=0.4), report(), report(way="trisplit relay", link_delay_ms=5.0, token_s=1),
        report(link_delay_ms=5.0, token_s=0.5),
    ]  # fmt: skip
    found = grid_report([Outcome(None, Measured(None, None, 0, one)) for one in reports], [], "m")  # type: ignore[arg-type]
    assert [cell["speedup_over_relay"] for cell in found["cells"]] == [1.0, 4.0, 1.0, 2.0]
    assert found["tokens_agree"]


def test_answers_to_one_prompt_must_begin_alike_whatever_their_length() -> None:
    assert tokens_agree([report(), report(token_ids=[1, 2]), report(prompts="edit", token_ids=[9])])
    assert not tokens_agree([report(), report(token_ids=[1, 5])])


async def test_a_grid_measures_what_it_can_and_names_what_the_engine_refuses(tiny_model: Path, tmp_path: Path) -> None:
    cells = [Cell(route="relay", kernels="reference", new_tokens=3), Cell(kernels="reference", new_tokens=3)]
    cells.append(Cell(kernels="reference", new_tokens=3, speculate="pairz", plan="layers:2"))
    cells.append(Cell(kernels="reference", new_tokens=3, plan="layers:99"))
    planned = [Planned(cell, 5.0, 60.0) for cell in cells]
    seen: list[Outcome] = []
    outcomes = await run_grid(
        planned, model=str(tiny_model), on_cell=lambda index, one: lambda count: None, on_measured=seen.append
    )
    solo = await solo_answers(planned, str(tiny_model))
    found = grid_report(outcomes, solo, "tiny")
    wrong = [solo[0] | {"token_ids": [*solo[0]["token_ids"][:2], -1]}]
    assert not grid_report(outcomes, wrong, "tiny")["tokens_agree"]
    assert seen == outcomes
    assert [cell["way"] for cell in found["cells"]][:2] == ["trisplit relay", "trisplit chain"]
    assert found["tokens_agree"]
    assert [(one["way"], "pairz" in one["why"]) for one in found["refused"]] == [("layers:2 chain, pairz", True)]
    assert ["99" in one["why"] for one in found["failed"]] == [True]
    assert len(found["cells"]) == 2
    written, problem = write_grid(outcomes, found, tmp_path)
    assert {"grid.json", "grid.html"} <= {path.name for path in written}
    page = (tmp_path / "grid.html").read_text("utf-8")
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert len(data["cells"]) == len(found["cells"])
    assert data["cells"][0]["timeline"]["boxes"]
    pytest.importorskip("matplotlib", reason="extra `plots`")
    assert problem == ""
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_needs_no_network_and_a_text_cannot_end_its_data(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    evil = report(text="</script><script>alert(1)</script>", wire_floor_s=1)
    write_page([PageCell(evil, Timeline((), (), (), (), 0.0))], "<b>", "about", path)
    page = path.read_text("utf-8")
    assert "alert(1)</script>" not in page
    assert "<title>&lt;b&gt;</title>" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_a_picture_without_matplotlib_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotsMissingError, match="-m pip install matplotlib"):
        draw_timeline(Timeline((), (), (), (), 0.0), "t", tmp_path / "t.png")


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_named_geometry_is_a_generated_model_that_stations_know(name: str) -> None:
    from stations.models.synthetic_spec import SyntheticSpec

    spec = SyntheticSpec.parse(resolve_model(f"synthetic:{name}", None))
    assert f"{spec.layers}-layers" in name
    assert 4 * spec.hidden == {28: 14_336, 60: 21_504}[spec.layers]


def test_a_geometry_that_does_not_fit_is_refused_with_the_one_that_does() -> None:
    assert weight_bytes(GEOMETRIES["60-layers"]) > 14 << 30
    with pytest.raises(InvalidRequestError, match=r"4\.0 GiB are free; synthetic:60-layers-thin fits"):
        resolve_model("synthetic:60-layers", 4 << 30)
    assert resolve_model("synthetic:60-layers-thin", 4 << 30).startswith("synthetic:layers=60,")
    assert resolve_model("smollm2", 0) == "smollm2"
    assert resolve_model("synthetic:layers=2", 0) == "synthetic:layers=2"
