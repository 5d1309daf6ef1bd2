"""Decode rate and KV bytes at depth for every way to keep KV, beside f32 and beside depth 100 (METHOD.md)."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from aeonflow import new_event_loop
from host.bench.kv_depth import DEPTHS, MODES, ROWS, bench_kv_depth

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--ways", nargs="+", default=MODES, metavar="NAME=VALUE …", help="e.g. 'kv=q8 max_rows=25%%'")
parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
parser.add_argument("--rows", type=int, default=ROWS, help="decoded at each depth")
parser.add_argument("--model", default="smollm2", help="name in the cache, or synthetic:…")
parser.add_argument("--plan", default="solo")
parser.add_argument("--threads", type=int, default=1)

if __name__ == "__main__":
    options = parser.parse_args()
    measuring = bench_kv_depth(
        options.ways,
        depths=options.depths,
        model=options.model,
        plan=options.plan,
        threads=options.threads,
        rows=options.rows,
        progress=lambda said: print(said, file=sys.stderr, flush=True),
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(measuring)))
