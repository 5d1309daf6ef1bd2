"""The bench of depths runs and reports what it says; how fast is never asserted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from aeonflow.errors import UnsupportedError
from host.bench.kv_depth import bench_kv_depth
from host.bench.kv_table import (
    COLUMNS,
    Pace,
    bench_kv_table,
    foreseen_row_s,
    merged,
    pairs_text,
    table_rows,
    table_text,
    with_table,
)
from host.bench.kv_texts import default_texts
from host.bench.kv_way import kv_way
from host.bench.kv_window import bench_kv_window


async def test_every_way_decodes_at_every_depth_and_says_what_it_holds_there(tiny_model: Path) -> None:
    found = await bench_kv_depth(("kv=f32", "kv=q8 exact_recent=0"), depths=(130, 40), rows=3, model=str(tiny_model))
    row_bytes = 4 * 2 * 16 * 2 * 4  # layers, KV heads, dims, K and V, f32
    assert found["depths"] == [40, 130]
    f32, q8 = found["ways"]["kv=f32"], found["ways"]["kv=q8 exact_recent=0"]
    assert [at["kv_bytes"] for at in f32] == [40 * row_bytes, 130 * row_bytes]
    assert q8[1]["kv_bytes"] < 0.5 * f32[1]["kv_bytes"]
    assert all(at["decode_tok_s"]["count"] == 3 for at in (*f32, *q8))
    assert [at["to_first"] for at in f32] == [1.0, 1.0]
    assert f32[0]["to_shallow"] == q8[0]["to_shallow"] == 1.0
    json.dumps(found)


TEXT = {"a": "".join(f"{i} times {i} is {i * i}; " for i in range(200)), "b": "short"}


async def test_the_table_has_a_row_for_every_way_that_makes_sense_at_a_context(tiny_model: Path) -> None:
    ways = ("kv=q8", "max_rows=50% evict=recent", "o1=m=4,w=16", "window=5%")
    found = await bench_kv_table(TEXT, contexts=(300, 128), ways=ways, model=str(tiny_model), threads=1)
    assert list(found["contexts"]["128"]) == ["kv=q8"]
    assert list(found["contexts"]["300"]) == [*ways[:3], f"as many bytes as {ways[2]}"]
    assert "max_rows=64" in found["left_out"]["128"][ways[1]]
    assert found["contexts"]["300"]["kv=q8"]["kl"]["value"] > 0
    table = table_rows(found)
    names = ["f32", "q8", "f32", "q8", "max_rows=50% evict=recent", "o1=m=4,w=16", "max_rows=128 evict=recent"]
    assert [row[1] for row in table] == [f"`{name}`" for name in names]
    assert {len(row) for row in table} == {len(COLUMNS)}
    text = table_text(found)
    old = "\n".join(text.split("\n")[:3])
    assert with_table(f"before\n\n{old}\n\nafter | this", text) == f"before\n\n{text}\n\nafter | this"
    json.dumps(found)


async def test_a_table_out_of_time_leaves_ways_out_from_the_end_and_says_so(tiny_model: Path) -> None:
    ways = ("kv=f16", "kv=q8")
    found = await bench_kv_table(TEXT, contexts=(100, 400), ways=ways, model=str(tiny_model), threads=1, minutes=0)
    assert list(found["contexts"]["100"]) == list(ways)
    assert found["contexts"]["400"] == {}
    told = (
        r"out of time: f32 and the ways up to this one need about (\d+) s, 0 s were left; --minutes [1-9]\d* lets it in"
    )
    q8, f16 = (re.fullmatch(told, found["left_out"]["400"][way]) for way in reversed(ways))
    assert q8 is not None
    assert f16 is not None
    assert int(q8[1]) >= int(f16[1])


def test_seconds_a_row_grow_with_the_context() -> None:
    assert foreseen_row_s([Pace(512, 1.0)], 8000) > 2.0
    assert foreseen_row_s([Pace(512, 1.0), Pace(2048, 2.0)], 5120) == 4.0
    assert foreseen_row_s([Pace(512, 2.0), Pace(2048, 1.0)], 8000) == 1.0


def test_a_way_is_named_as_in_open_cache_and_shares_are_of_the_context() -> None:
    assert kv_way("kv=q8 exact_recent=64", 1000).to_wire() == {"kv": "q8", "exact_recent": 64}
    assert kv_way("kv=q4 exact_recent=5%", 2000).exact_recent == 100
    overlay = kv_way("o1=m=16,w=64,layers=1-2", 1000).o1
    assert overlay is not None
    assert (overlay.m, overlay.w, overlay.layers) == (16, 64, (1, 2))
    with pytest.raises(UnsupportedError, match="rows"):
        kv_way("rows=7", 1000)


async def test_a_model_of_sliding_layers_holds_as_many_bytes_at_every_position() -> None:
    found = await bench_kv_window(("kv=f16",), positions=(140, 300), window=16, periods=2)
    way = found["ways"]["kv=f16"]
    row_bytes = 8 * 2 * 64 * 2 * 2  # layers, KV heads, dims, K and V, f16
    assert way["bytes_are_equal"]
    assert {(at["kv_bytes_least"], at["kv_bytes_most"]) for at in way["at"]} == {(17 * row_bytes, 33 * row_bytes)}
    assert all(at["kv_bytes_most"] <= at["reserved_bytes"] for at in way["at"])
    assert all(at["row_ms"]["count"] == 34 for at in way["at"])
    json.dumps(found)


async def test_born_is_compared_token_by_token_with_the_newest_rows_in_as_many_bytes(tiny_model: Path) -> None:
    way, text = "max_rows=50% evict=born", "".join(f"{i} times {i} is {i * i}; " for i in range(700))
    found = await bench_kv_table(
        {"a": text}, contexts=(300,), ways=(way,), num_windows=3, first_window=1, model=str(tiny_model), threads=1
    )
    (pair,) = found["paired"]["300"]
    row_bytes = 2 * 16 * 2 * 4
    rows = -(-150 * (row_bytes + 16) // row_bytes)
    assert (pair["way"], pair["less"]) == (way, f"max_rows={rows} evict=recent")
    kl = [found["contexts"]["300"][name]["kl"]["value"] for name in (way, f"as many bytes as {way}")]
    assert pair["difference"]["kl"]["value"] == pytest.approx(kl[0] - kl[1], rel=1e-9)
    assert pair["difference"]["num_windows"] == 3
    born_bytes, recent_bytes = pair["full_bytes"]
    assert born_bytes == 4 * 150 * (row_bytes + 16)
    assert born_bytes <= recent_bytes < 1.01 * born_bytes
    assert pairs_text(found).count("\n") == 2
    anew = json.loads(json.dumps(found))
    anew["contexts"]["300"] = {way: {"kl": "anew"}}
    both = merged({**found, "left_out": {"300": {way: "out of time"}}}, anew)
    assert next(iter(both["contexts"]["300"].values())) == {"kl": "anew"}
    assert (len(both["contexts"]["300"]), both["paired"]["300"], both["left_out"]["300"]) == (2, [pair], {})


def test_the_default_texts_are_long_enough_for_many_windows() -> None:
    texts = default_texts()
    assert list(texts)[:: len(texts) - 1] == ["pydoc_data.topics", "docstrings"]
    assert min(len(texts["pydoc_data.topics"]), len(texts["docstrings"])) > 300_000
