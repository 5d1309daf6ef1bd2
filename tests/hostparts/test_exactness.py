from __future__ import annotations

import pytest

from host.errors import InvalidRequestError, UnsupportedOptionError
from host.kv_options import exactness_options, make_kv_options
from host.plan import effect_of, exactness, explain, mixed_numerics
from host.plan.explain import CUT_LEVELS, MODEL_LEVELS, TABLE
from host.result import Exactness


def test_the_defaults_are_exact_in_both_senses() -> None:
    options = {"plan": "trisplit", "route": "chain", "kernels": "fast", "threads": 2, "temperature": 0.7, "kv": "f32"}
    assert exactness(options) == Exactness("exact", "exact")


def test_reference_kernels_bound_the_cut() -> None:
    assert exactness({"kernels": "reference", "route": "relay"}) == Exactness("bounded", "exact")


def test_stations_with_different_numerics_bound_the_cut_and_the_reason_names_them() -> None:
    ids = ["a" * 64, "b" * 64, ""]
    assert exactness({"kernels": "fast"}, ids).cut == "bounded"
    reason = mixed_numerics(ids)
    assert reason is not None
    assert "aaaaaaaaaaaa, bbbbbbbbbbbb differ" in reason
    assert mixed_numerics(["a" * 64, "", "a" * 64]) is None


def test_options_are_read_as_written_on_the_command_line() -> None:
    assert effect_of("--prefill-chunk", 64).option == "prefill_chunk"
    assert effect_of("coalesce", True).value == "on"
    assert "down's fixed sum" in effect_of("plan", "ffslice:4").note
    assert effect_of("plan", "layers:4").value == "*"
    assert [e.option for e in explain({"kernels": "fast", "seed": None, "threads": 2})] == ["kernels", "threads"]


@pytest.mark.parametrize(
    ("option", "value", "supported"),
    [("volumes", "on", "off")],
)
def test_an_option_that_is_not_built_yet_is_refused_with_what_is(option: str, value: str, supported: str) -> None:
    with pytest.raises(UnsupportedOptionError, match=f"not supported yet; supported is {supported}"):
        exactness({option: value})


def test_what_was_measured_to_lose_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedOptionError, match=r"too rarely to beat prompt lookup.*; supported is off, lookup"):
        exactness({"speculate": "pairz"})


def test_an_unknown_option_or_value_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="option 'beam' is unknown"):
        effect_of("beam", 4)
    with pytest.raises(InvalidRequestError, match="kernels 'cuda': allowed is fast, fast-int8, reference"):
        effect_of("kernels", "cuda")
    for option, value in (("route", "chain:x"), ("kernels", "fast:"), ("pair_x", "off:2")):
        with pytest.raises(InvalidRequestError, match=f"{option} '{value}': allowed is "):
            effect_of(option, value)


@pytest.mark.parametrize(
    ("kv", "recent", "model"),
    [
        ("q8", None, "certified"), ("q8", 32, "certified"), ("q8", 31, "approximate"), ("q8", 0, "approximate"),
        ("q4", None, "certified"), ("q4", 64, "certified"), ("q4", 63, "approximate"), ("q4", 1, "approximate"),
    ],
)  # fmt: skip
def test_coded_rows_are_certified_beside_as_many_exact_ones_as_were_measured(
    kv: str, recent: int | None, model: str
) -> None:
    options = make_kv_options(kv=kv, kv_exact_recent=recent)
    assert exactness(exactness_options(options)) == Exactness("exact", model)


def test_every_row_declares_both_answers() -> None:
    assert {row.cut for row in TABLE} <= set(CUT_LEVELS)
    assert {row.model for row in TABLE} <= set(MODEL_LEVELS)
    assert len({(row.option, row.value) for row in TABLE}) == len(TABLE)
    assert all(row.note for row in TABLE)
