"""Coalescing compared side by side: both fleets run, and only the one with it puts frames together."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.bench.prompts import BenchPrompt
from host.bench.trisplit import Cell, Counted
from host.bench.trisplit_coalesce import bench_coalesce


def test_what_links_send_when_idle_is_taken_off_in_proportion() -> None:
    idle = Counted(2.0, 20, 10, 400, 0, 0.0)
    run = Counted(1.0, 110, 55, 1200, 7, 0.5)
    assert run.without(idle) == Counted(1.0, 100, 50, 1000, 7, 0.5)
    assert Counted(1.0, 3, 3, 3, 0, 0.0).without(idle).frames == 0


@pytest.mark.slow
async def test_frames_share_messages_only_with_coalescing(tiny_model: Path) -> None:
    cell = Cell(kernels="reference", new_tokens=4)
    prompt = BenchPrompt("count", "one two three four five six seven eight")
    found = await bench_coalesce(cell, model=str(tiny_model), prompt=prompt, limit_s=60.0, sessions=(1, 6), runs=1)
    assert found["sessions"].keys() == {"1", "6"}
    for one in found["sessions"].values():
        assert one["off_frames_per_message"] == 1.0
        assert one["on_frames_per_message"] >= 1.0
        assert one["gain"] > 0
    assert found["sessions"]["6"]["on_frames_per_message"] > 1.0
