"""What is told on stderr on the way, and the one line at the end of an answer."""

from __future__ import annotations

import msgspec
import pytest

from host.cli.progress import Ticker, summary
from host.cli.target import fleet_title
from host.result import Exactness, Result, Timings, Usage

RESULT = Result(
    text="Hi",
    token_ids=(1, 2),
    prompt_ids=(7, 8, 9),
    finish_reason="stop",
    usage=Usage(3, 2, 1),
    timings=Timings(0.5, 20.0, 10.0, 0.6),
    plan="trisplit",
    route="chain",
    kernels="fast",
    transport="picows",
    exactness=Exactness("exact", "exact"),
    hops_per_token=93,
    bytes_per_token=2048,
    kv={"kv": "f32"},
    speculation={"drafted": 0, "tokens_per_pass": 1.0},
    pair_x={"mode": "off"},
)


def test_it_says_what_was_made_how_fast_how_and_how_exactly() -> None:
    line = summary(RESULT)
    for part in ("2 tokens (stop) in 0.60 s", "prompt 3 (1 from cache)", "decode 10.0 tok/s", "trisplit, chain, fast",
                 "93 hops", "cut exact, model exact"):  # fmt: skip
        assert part in line
    assert "logits" not in line


def test_guesses_are_told_where_there_were_any() -> None:
    assert "a pass" not in summary(RESULT)
    guessed = msgspec.structs.replace(RESULT, speculation={"drafted": 9, "tokens_per_pass": 2.4})
    assert "2.40 tokens a pass" in summary(guessed)


def test_a_logits_hash_that_was_asked_for_is_told() -> None:
    assert summary(msgspec.structs.replace(RESULT, logits_hash="ab12")).endswith(" · logits ab12")


def test_long_work_is_told_every_few_seconds_with_what_it_will_still_take(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 6.0, 7.0, 20.0])
    tick = Ticker("rows", clock=lambda: next(times))
    for done in (1, 25, 30, 100):
        tick(done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "rows: 25 of 100 after 6 s, about 18 s more",
        "rows: 100 of 100 after 20 s",
    ]


def test_a_fleet_has_its_name_and_addresses_are_counted() -> None:
    assert fleet_title("day") == "fleet day"
    assert fleet_title("wss://desk:7001") == "fleet of 1 address"
    assert fleet_title("ws://10.0.0.1:7001, ws://10.0.0.2:7001") == "fleet of 2 addresses"
