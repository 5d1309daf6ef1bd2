"""The bench of depths runs and reports what it says; how fast is never asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aeonflow.errors import UnsupportedError
from host.bench.kv_depth import bench_kv_depth
from host.bench.kv_way import kv_way


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


def test_a_way_is_named_as_in_open_cache_and_shares_are_of_the_context() -> None:
    assert kv_way("kv=q8 exact_recent=64", 1000).to_wire() == {"kv": "q8", "exact_recent": 64}
    assert kv_way("kv=q4 exact_recent=5%", 2000).exact_recent == 100
    overlay = kv_way("o1=m=16,w=64,layers=1-2", 1000).o1
    assert overlay is not None
    assert (overlay.m, overlay.w, overlay.layers) == (16, 64, (1, 2))
    with pytest.raises(UnsupportedError, match="rows"):
        kv_way("rows=7", 1000)
