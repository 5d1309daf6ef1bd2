"""Measurements: what `aeonflow bench` and the scripts in `benches/` run. Methods: `benches/METHOD.md`.

Every function returns a plain dict for one JSON object. What is compared alternates in one run, so that a busy machine
slows both sides; medians with the 10 % and 90 % quantiles are reported, never a best run alone.
"""

from __future__ import annotations

from .decode import bench_decode
from .hop import bench_hop
from .wire import bench_wire

__all__ = ["bench_decode", "bench_hop", "bench_wire"]
