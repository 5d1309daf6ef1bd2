"""The command `aeonflow bench trisplit`: what it refuses before anything starts, what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from host.cli.bench_trisplit import duration
from host.cli.bench_trisplit_table import show_cell, show_grid
from host.cli.failure import run_app


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--delays", "1"], "--delays and --only are of --grid"),
        (["--grid", "--plan", "layers:2"], "--grid has its own ways and delays"),
        (["--grid", "--delays", "1,x"], "numbers of milliseconds"),
        (["--grid", "--only", "magic"], "the ways are trisplit relay; trisplit chain;"),
        (["--coalesce", "both", "--netns"], "without --grid, --netns and --out"),
        (["--prompts", "nowhere.json"], "shipped sets are chat and edit"),
        (["--new-tokens", "1"], "--new-tokens"),
        (["--speculate", "magic"], "magic"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["bench", "trisplit", *options]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""


def test_a_cell_is_one_json_object_after_its_estimate(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", str(tiny_model), "--kernels", "reference", "--plan", "layers:2", "--new-tokens", "3"]
    assert run_app(["bench", "trisplit", *options, "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["plan"] == "layers:2"
    assert len(found["token_ids"]) == 3
    show_cell(found)
    shown = capsys.readouterr().out
    assert "3 hops x" in shown
    assert not re.search(r"None|\[|\{|guesses|pair_x", shown)  # nothing of what is off, no bare values
    show_cell(found | {"pair_x": {"mode": "draft", "layers": [2, 3, 4, 7], "seeded": 9, "drafted": 9, "accepted": 8}})
    shown = capsys.readouterr().out
    assert "guesses: 8 of 9 right; 2 tokens in 2 passes" in shown
    assert "pair_x draft: layers 2-4, 7 take seeds" in shown
    assert found["layer_s"] is None
    assert "given up after" in told.err


def test_the_grid_is_shown_by_way_and_delay_with_what_was_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def cell(way: str, delay_ms: float, token_s: float, speedup: float | None) -> dict[str, Any]:
        return {"way": way, "link_delay_ms": delay_ms, "token_s": token_s, "speedup_over_relay": speedup,
                "formula_ratio": 1.02}  # fmt: skip

    cells = [cell("relay", 1.0, 0.4, 1.0), cell("chain", 1.0, 0.2, 2.0), cell("chain", 5.0, 0.5, None)]
    refused = [{"way": "chain, magic", "link_delay_ms": 1.0, "why": "not built"}]
    show_grid({"cells": cells, "refused": refused, "failed": [], "tokens_agree": False})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-4:] == ["1", "ms", "5", "ms"]
    assert lines[2].split() == ["chain", "200.0", "(2.00x,", "1.02)", "500.0", "(–,", "1.02)"]
    assert lines[3:] == ["not measured: chain, magic: not built", "TOKENS DIFFER between ways"]


@pytest.mark.parametrize(("seconds", "words"), [(42.4, "42 s"), (180, "3 min"), (3900, "1 h 5 min")])
def test_durations_are_told_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
